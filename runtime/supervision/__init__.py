"""Supervision: which life of which replica is to be, where, when the next one begins, and when a run is over.

Pure: cores with events in and commands out, and the records that they exchange. The room `home` decides for the whole
run, `station` what becomes of the processes of one machine; `driver` feeds a core and has its commands performed. The
shells that have sockets, processes and a ledger are beside this room; the simulator is another shell.
"""
