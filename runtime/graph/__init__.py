"""Decides whether a graph is sound, who can hold up whom, where each replica goes, and what each host will run.

`template` is what users write and is exported here; `local_rules`, `proof` and `verify` judge it, `instances` unfolds
its roles into replicas, `placement` puts them on the machines of a `topology`, `plans` compiles it for the hosts.
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
