"""Supervision: which incarnation of which replica runs, where, when the next one begins, and when a run is over.

Pure: cores with events in and commands out, and the records that they exchange. `home` decides for the whole run,
`station` for the processes of one machine; `driver` feeds a core and has its commands performed. The shells with
sockets, processes and a ledger are in other packages; the simulator is another shell.
"""
