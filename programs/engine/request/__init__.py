"""Decides whether a request is right, and turns it into a verified job. Nothing is started."""
