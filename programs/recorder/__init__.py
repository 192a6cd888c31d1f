"""Keeps the run folder while a run goes on, and decides when it has ended, and whether it is done."""
