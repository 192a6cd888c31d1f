"""Decides what became of every token of a run, and what learners and shards say differently of it."""
