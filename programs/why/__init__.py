"""Decides what a run folder tells of one merge: who answered, when, with what weight, and why its round closed."""
