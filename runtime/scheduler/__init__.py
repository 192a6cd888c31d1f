"""Decides when a node fires, what a firing takes, where items go, and who gets credit. Pure; the tape included."""
