"""Decides which batch a learner trains on; reads files."""
