"""The tapes in a run folder. Decides which there are, their owners, their reading, and a learner's waits on them."""
