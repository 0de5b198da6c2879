"""Bounded exploration of the pool's scripts, and the mutation test over their checks."""
