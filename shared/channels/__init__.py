"""The pool's atomic steps and the channels around it.

A step is a `Call`: a script, its keys, its arguments and how to read its reply. Services run
calls through `Pool` (blocking) or `AsyncPool`; tests drive the very same calls one by one.
"""
