"""Runs under deliberate faults: decides what is struck and when, and measures what that costs."""
