"""Decides what the tapes in a run folder are: which there are, whose, how they are read, and which waits of a learner
they tell."""
