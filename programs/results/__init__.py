"""Reads what a run leaves behind, and says it in words."""
