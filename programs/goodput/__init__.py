"""Goodput under chip failures, of learners far larger than anything here: an event model, and the published figures."""
