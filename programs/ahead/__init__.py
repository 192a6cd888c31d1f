"""Compilation ahead of time: whether a run's real functions fit an island of a kind that is not here, and what they
cost there. Decides what a target is called, what is counted of a program, and what a step is predicted to take; the
compiler runs in a process of its own, and placement reads what is kept of its figures."""
