"""What a simulated machine gives its hosts: clocks, disks, and the ledger of its daemon."""
