"""Decides what is told of settings that followed the links: each change once, what is in use, and in which words."""
