"""Decides which machine a key belongs to, and which machines may connect."""
