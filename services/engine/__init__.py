"""The execution engine: one message, one iteration of selective batching."""
