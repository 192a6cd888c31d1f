"""Runs for which no machine is rented yet: decides what bandwidth, memory, failures and cost they will have."""
