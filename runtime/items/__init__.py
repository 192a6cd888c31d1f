"""Decides what an item may be, its encoding as frames, and which incoming frames are accepted."""
