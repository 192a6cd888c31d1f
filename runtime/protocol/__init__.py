"""Decides what a connection between two hosts may carry, when, and under what credit. No input, output or clock."""
