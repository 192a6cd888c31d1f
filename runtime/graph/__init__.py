"""Decides whether a graph is sound, which nodes can delay others, where each replica goes, and what each host runs.

`template` is what users write and is exported here; `local_rules`, `proof` and `verify` check it, `instances` expands
its roles into replicas, `placement` assigns them to the machines of a `topology`, `plans` compiles it for the hosts.
"""

from __future__ import annotations

from isthmus.runtime.graph.template import (
    AllOf,
    AnyOf,
    Edge,
    Every,
    Graph,
    Job,
    Latest,
    Node,
    Policy,
    Port,
    Queue,
    Quorum,
    Reference,
    Role,
    TensorSpec,
)

__all__ = [
    "AllOf",
    "AnyOf",
    "Edge",
    "Every",
    "Graph",
    "Job",
    "Latest",
    "Node",
    "Policy",
    "Port",
    "Queue",
    "Quorum",
    "Reference",
    "Role",
    "TensorSpec",
]
