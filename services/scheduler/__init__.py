"""Iteration-level scheduling: after every iteration it is decided anew who runs.

`selection.py` is ORCA's Algorithm 1, pure. `state.py` turns inbox events into what selection
sees. `loop.py` hears, selects and dispatches. Nothing here knows tensors or text.
"""
