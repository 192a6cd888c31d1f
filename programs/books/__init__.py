"""The accounts of a run's tokens. Decides the fate of every token, and the differences between learners and shards."""
