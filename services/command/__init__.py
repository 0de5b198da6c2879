"""The `orca` command: supervision, inspection and a chat. Starts services by name, imports none.

What a service does is its own affair: this package knows their options and their ports, the
state directory, and in which order things start and stop.
"""
