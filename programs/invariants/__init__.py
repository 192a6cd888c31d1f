"""The invariants of every simulated run, checked on the messages between hosts and on the files on disk."""
