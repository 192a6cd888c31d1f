"""The channel over sockets. Decides whom to dial, and when a peer is lost."""
