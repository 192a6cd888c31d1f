"""Settings that follow the links: which formats, interval and overlap a shard's links carry, and when that changes."""
