"""Decides whether the cores of a run, fed again with the events of its tapes, give the same commands.

Nothing of a run is started, and payloads are not on tapes.
"""
