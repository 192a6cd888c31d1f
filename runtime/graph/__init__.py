"""Decides whether a graph is sound, which nodes can delay others, where each replica goes, and what each host runs.

`template` is what users write and is exported here; `local_rules`, `proof` and `verify` check it, `instances` expands
its roles into replicas, `placement` assigns them to the machines of a `topology`, `plans` compiles it for the hosts.
"""
