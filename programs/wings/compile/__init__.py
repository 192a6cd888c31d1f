"""Compilation ahead of time: whether a run's real functions fit an island of a kind that is not here, and their cost.

Decides the names of targets, the figures that are counted of a program, and the predicted time of a step; the compiler
runs in a process of its own, and placement reads the figures that are kept.
"""
