"""Decides whose key it is, and who may connect."""
