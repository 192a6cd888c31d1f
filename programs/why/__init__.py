"""Decides which facts of one merge a run folder gives: answers, times, weights, and the reason for its close."""
