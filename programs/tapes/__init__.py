"""The tapes in a run folder. Decides which there are, their owners, their reading, the firings of their hosts, and a
learner's waits on them."""
