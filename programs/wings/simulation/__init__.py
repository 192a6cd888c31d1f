"""Decides the meaning of a seed, and the invariants of every simulated run."""
