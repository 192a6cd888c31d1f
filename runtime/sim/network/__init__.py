"""The network of a simulated run: sockets over pipes, the conditions between machines, links between daemons."""
