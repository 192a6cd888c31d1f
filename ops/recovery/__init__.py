"""What a shard or a learner that comes back goes on from: who holds the model, who says so, and whom it believes."""
