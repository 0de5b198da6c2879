"""The HTTP routes, one file per resource; each only reads, calls and answers."""
