"""One anomaly detector a file; none knows tasks, streams or files."""
