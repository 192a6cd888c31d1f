"""The channel over sockets. Decides which peers to dial, and when one is lost."""
