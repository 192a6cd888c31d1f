"""The daemon of a machine, its links to other machines, and the side of the commands that talk to it."""
