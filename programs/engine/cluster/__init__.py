"""Cluster files and machine files. Decides where a run goes, and predicts its speed."""
