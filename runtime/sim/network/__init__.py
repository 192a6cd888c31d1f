"""The network of a simulated run: sockets over pipes, what the weather does to them, links between daemons."""
