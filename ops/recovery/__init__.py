"""What a shard that comes back goes on from: who holds the model, who says so, and whom it believes."""
