"""Keeps the run folder during a run, and decides when the run has ended, and whether it is done."""
