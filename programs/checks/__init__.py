"""Decides whether the functions of a task fit each other, by shapes alone."""
