"""The hosts that go on, and those that wait, when a host is away: by the graph of the run.

It reads `graph.json`, whose nodes contain what was proved of them before the start (`blocked_by`), and decides nothing
of its own. For learners the result concerns their steps: where a node of theirs is declared free-running, that one
counts; where none is, all do. A firing rule that counts votes (`Quorum`) drops members that are known to be dead, so a
host that waits in rounds waits for the living only; a Queue between learners drops none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from isthmus.runtime.ids import LEARNER, SYNCER

Others: TypeAlias = Literal["go on", "wait for rounds", "wait"]
"""Learners' behaviour while one is away: go on; wait in rounds, which drop dead members; wait for it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Learners' behaviour while another learner is away, and whether they wait while a syncer is."""

    others: Others
    is_for_syncer: bool


def waiting_of(folder: Path) -> Waiting | None:
    """The waiting in the graph of a run folder; None if there is none, or it is no graph."""
    try:
        return waiting_in(json.loads((folder / "graph.json").read_bytes()))
    except (OSError, ValueError):
        return None


def waiting_in(graph: object) -> Waiting | None:
    """The waiting in a graph as in graph.json; None if it is no graph."""
    nodes = graph.get("nodes") if isinstance(graph, Mapping) else None
    if not isinstance(nodes, list) or not all(isinstance(node, Mapping) for node in nodes):
        return None
    steps = [node for node in nodes if node.get("role") == LEARNER]
    steps = [node for node in steps if node.get("mode") == "free-running"] or steps
    blockers = {name for node in steps for name in _names(node)}
    # A node of the own host is named only if it may block by itself, which does not depend on other hosts.
    known = [node for node in nodes if isinstance(node.get("name"), str) and node["name"] in blockers]
    roles = [node.get("role") for node in known if node.get("mode") != "may-block"]
    has_rounds = any(str(node.get("firing")).startswith("Quorum") for node in nodes)
    others: Others = "go on" if LEARNER not in roles else "wait for rounds" if has_rounds else "wait"
    return Waiting(others, SYNCER in roles)


def _names(node: Mapping[str, Any]) -> Iterable[str]:
    """The nodes that can hold up this one."""
    blocked_by = node.get("blocked_by")
    return filter(lambda name: isinstance(name, str), blocked_by) if isinstance(blocked_by, list) else ()
