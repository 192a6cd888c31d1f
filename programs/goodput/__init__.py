"""Goodput when chips fail, of learners far larger than anything here: an event model, and what was published."""
