"""`isthmus chaos`: the faults inflicted on the processes of real runs, the proof that they happened, and their cost."""
