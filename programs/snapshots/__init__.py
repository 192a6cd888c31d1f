"""Snapshots of a model on disk: what one is, which one is good, and when one is taken."""
