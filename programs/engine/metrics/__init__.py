"""Figures of runs for Prometheus: decides their names, units and labels, and who is answered.

`families` makes them of the statuses that `isthmus status` shows, `exporter` serves them."""
