"""Decides whether a graph is sound, which nodes can delay others, and what each host runs.

`template` is what is written; `proof` and `verify` check it, and `plans` compiles it for the hosts.
"""
