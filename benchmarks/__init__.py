"""How much faster than the plain way, and at which size: `make bench`."""
