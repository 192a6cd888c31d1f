"""What makes a run go, and what it leaves: from a request to processes on machines, snapshots, records and facts.

`request` proves a job before anything starts; `islands`, `run`, `cluster` and `machine` carry it out on one machine or
on several; `snapshots` and `recorder` keep what it makes; `results` reads a run folder and words it, and `metrics`
has the figures of a run for Prometheus. Nothing here imports `study`."""
