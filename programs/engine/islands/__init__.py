"""Decides which devices of a machine each host gets, before any host has started a backend."""
