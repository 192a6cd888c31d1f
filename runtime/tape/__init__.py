"""The tape of a core: its events and commands as framed records.

Segments each begin with the core's whole state, so that a tape can be cut at both ends and still be replayed. The cores
define events and commands.
"""
