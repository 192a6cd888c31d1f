"""Decides which processes of an elastic island train together: when it goes on without some, and takes them back."""
