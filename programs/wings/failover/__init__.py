"""A home that moves: decides when a machine may become the home of a run that had another one."""
