"""`isthmus doctor`: decides which facts of a machine, and of its way to others, prevent a run, and says what to do."""
