"""Cluster files and machine files. Decides where a run goes, and predicts its speed.

`placement` assigns the replicas of a graph's roles to machines, whose accelerators `devices` knows; both are pure.
"""
