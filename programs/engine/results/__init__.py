"""Reads the files that a run leaves behind, and words their contents."""
