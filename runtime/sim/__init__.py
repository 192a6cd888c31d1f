"""Whole runs in virtual time, in one thread, from one seed.

`World` has hosts over an in-process network, without faults: it is the fast one, for programs. `Universe` has hosts on
machines, over the real wire on simulated sockets, with clocks of their own, the supervision of a real run, and faults
(`Kill`, `Pause`, `Cut` and others) that are counted when they have really happened. A `Checker` checks an invariant.
"""
