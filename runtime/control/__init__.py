"""Control messages between daemons, hosts and commands: their form and version, server and client."""
