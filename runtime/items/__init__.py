"""Decides what an item may be, how it looks as frames, and what is accepted of the frames that come."""
