"""Decides which members of a run are alive, silent, stuck, slow or gone. Pure."""
