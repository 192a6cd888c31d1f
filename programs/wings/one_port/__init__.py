"""One open port: the process beside a daemon that accepts for all hosts of its machine, and leads connections in."""
