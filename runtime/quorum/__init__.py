"""Decides when a round of votes closes, with which votes, and why. Pure."""
