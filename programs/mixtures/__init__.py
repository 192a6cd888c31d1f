"""Learners of several speeds, or that are there for a part of the time: whole runs of the toy in virtual time."""
