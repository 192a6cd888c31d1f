"""The operators: numerics and node bodies."""
