"""Recovery of a shard or a learner that comes back: holders of state, their claims, and which of these are believed."""
