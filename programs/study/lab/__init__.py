"""Experiments on runs, and on runs that are not there: faults with proof and cost, comparisons, plans, replays.

`chaos_*` inflict faults on the processes of real runs; `compare` and `compare_*` train programs side by side; `goodput`
measures goodput under chip failures; `plan` estimates a run for which no machines are rented yet; `replay` feeds the
cores of a run again with the events of its tapes.
"""
