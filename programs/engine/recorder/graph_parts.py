"""What a run knows of a graph beside its nodes: its fragments and paths, and how many replicas each role has at first.

A host, a daemon and what makes figures of a run ask the same; the figures themselves are `summary`.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.paths import PathParts
from isthmus.runtime.graph.template import Template
from isthmus.runtime.ids import Replica

FRAGMENTS_NAMED_MAX = 16
"""Fragments that the message of a lost shard lists."""


def fragment_sizes(graph: Template) -> list[int]:
    """The sizes of a program's fragments, in values; none if it exchanges whole trees."""
    return [fragment.size for fragment in fragments_in(graph)]


def fragments_of(graph: Template, shard: Replica) -> str:
    """The fragments that a syncer shard serves, for people: 'fragments 1 (head), 3 (norm and 2 more)'; '' if none."""
    shards = next((role.replicas_max for role in graph.roles if role.name == shard.role == "syncer"), 0)
    own = [fragment for fragment in fragments_in(graph) if shards and fragment.index % shards == shard.slot]
    named = [f"{fragment.index} ({_first([unit.name for unit in fragment.units], 1)})" for fragment in own]
    return f"fragment{'s' if len(own) > 1 else ''} {_first(named, FRAGMENTS_NAMED_MAX)}" if own else ""


def _first(names: Sequence[str], count: int) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def fragments_in(graph: Template) -> Sequence[Fragment]:
    """A program's fragments; none if it exchanges whole trees."""
    for node in graph.nodes:
        if node.role == "learner" and node.keywords.get("fragments"):
            fragments: Sequence[Fragment] = node.keywords["fragments"]
            return fragments
    return ()


def paths_in(graph: Template) -> PathParts | None:
    """The paths of a program whose model is made of modules."""
    named = [node.keywords.get("paths") for node in graph.nodes]
    return next((paths for paths in named if isinstance(paths, PathParts)), None)


def roster_counts(graph: Template, learners: int) -> dict[str, int]:
    """The number of replicas of each role at the start: `learners`, and the minimum of every other role."""
    counts = {role.name: max(1, role.replicas_min) for role in graph.roles}
    return {**counts, "learner": learners} if "learner" in counts else counts
