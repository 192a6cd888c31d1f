"""Decides which devices an island is, and how a learner's state and its batches lie on them."""
