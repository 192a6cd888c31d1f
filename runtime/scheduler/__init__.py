"""Decides when a node fires, what a firing takes, where items go, and which producers get credit.

Pure; the tape included.
"""
