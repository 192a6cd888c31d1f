"""Snapshots of a model on disk: their contents, their validity, and their times."""
