"""The contract of channels between hosts, and the channel inside a process."""
