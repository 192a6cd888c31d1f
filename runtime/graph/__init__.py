"""Decides whether a graph is sound, which nodes can delay others, where each replica goes, and what each host runs.

`template` is what users write and is exported here; `proof` and `verify` check it, `placement` assigns the replicas
of its roles to machines, whose accelerators `devices` knows, and `plans` compiles it for the hosts.
"""
