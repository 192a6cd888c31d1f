"""The operators: numerics and node bodies.

No module that declares a body imports jax before a host opens it.
"""
