"""What a shard or a learner that comes back continues from: holders of state, their claims, and which are believed."""
