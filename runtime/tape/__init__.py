"""Decides how what a core was told and said is kept: framed records, in segments that each begin with the core's whole
state, so that a tape can be cut at both ends and still be replayed. What events and commands are is for the cores."""
