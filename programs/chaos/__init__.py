"""`isthmus chaos`: which faults happen to the processes of real runs, that they happened, and what that cost."""
