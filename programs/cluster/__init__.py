"""Cluster files and machine files. Decides where a run goes, and predicts how fast it will be."""
