"""What a learner keeps of the tasks it has seen, and how it chooses among them."""
