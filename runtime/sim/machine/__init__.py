"""The parts of a simulated machine: clocks and disks of its hosts, and the ledger of its daemon."""
