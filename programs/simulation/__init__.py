"""Decides what a seed means, and what must hold in every simulated run."""
