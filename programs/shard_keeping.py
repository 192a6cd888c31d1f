"""What a shard keeps of a round, as nodes and edges of a graph: every answer until it closes, or the sum of their
values.

Decides nothing of a merge: that is `ops.syncer.merge` and `ops.syncer.summed_merge`. A program makes the node that
sends answers, those that close and merge rounds, and the edges between them, by one of `KEEPING`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.requested import Format
from isthmus.ops.learner.fragment_offer import FragmentOffer
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.syncer.conductor import TICK_NS, Tick
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.summed_merge import Ballot, SummedMerge
from isthmus.runtime.clock import Duration
from isthmus.runtime.graph.template import AnyOf, Every, Graph, Latest, Node, Queue, Quorum, Role

Push: TypeAlias = Format | Literal["auto"]


class MergeNodes(NamedTuple):
    """The node of a syncer that closes its rounds, and the one that merges, which may be the same."""

    ballot: Node
    merge: Node


class ShardKeeping(Protocol):
    """One way to keep a round."""

    def sender(self, learner: Role, parts: Sequence[Fragment], push: Push) -> Node:
        """The node of a learner that sends its answers."""

    def merging(
        self, syncer: Role, parts: Sequence[Fragment], votes: Quorum, *, shards: int, terms: Mapping[str, Any]
    ) -> MergeNodes:
        """Those of a syncer; `terms` are the arguments of `MergeBooks`."""

    def connect(self, graph: Graph, sender: Node, nodes: MergeNodes, *, most: int) -> None:
        """The edges between them, in a syncer that has `most` rounds at once."""


@final
class KeptAnswers:
    """A shard keeps every answer until its round closes."""

    def sender(self, learner: Role, parts: Sequence[Fragment], push: Push) -> Node:
        """As `ShardKeeping` says."""
        return learner.node("fragment-send", partial(FragmentSend, parts, push=push))

    def merging(
        self, syncer: Role, parts: Sequence[Fragment], votes: Quorum, *, shards: int, terms: Mapping[str, Any]
    ) -> MergeNodes:
        """As `ShardKeeping` says."""
        merge = syncer.node("merge", partial(Merge, parts, **terms), fires=votes)
        return MergeNodes(merge, merge)

    def connect(self, graph: Graph, sender: Node, nodes: MergeNodes, *, most: int) -> None:
        """As `ShardKeeping` says."""
        syncer = graph.role_of(nodes.ballot.role)
        graph.edge(sender["answer"], nodes.ballot["answer"], Latest("fragment"), to=syncer.at("fragment"))


@final
class KeptSums:
    """A shard keeps the sum of values, which come once a round has closed."""

    def sender(self, learner: Role, parts: Sequence[Fragment], push: Push) -> Node:
        """As `ShardKeeping` says."""
        offer = partial(FragmentOffer, parts, push=push)
        return learner.node("fragment-send", offer, fires=AnyOf("fragment", "wanted"))

    def merging(
        self, syncer: Role, parts: Sequence[Fragment], votes: Quorum, *, shards: int, terms: Mapping[str, Any]
    ) -> MergeNodes:
        """As `ShardKeeping` says."""
        ballot = syncer.node("ballot", partial(Ballot, parts, terms["step_tokens"]), fires=votes)
        summed = partial(SummedMerge, parts, shards=shards, **terms)
        return MergeNodes(ballot, syncer.node("merge", summed, fires=AnyOf("closed", "values", "tick")))

    def connect(self, graph: Graph, sender: Node, nodes: MergeNodes, *, most: int) -> None:
        """As `ShardKeeping` says. A tick lets a merge notice that values do not come."""
        learner, syncer = graph.role_of(sender.role), graph.role_of(nodes.merge.role)
        tick = syncer.node("tick", Tick, fires=Every(Duration(TICK_NS)))
        graph.edge(sender["answer"], nodes.ballot["answer"], Latest("fragment"), to=syncer.at("fragment"))
        graph.edge(nodes.ballot["closed"], nodes.merge["closed"], Queue(capacity=most))
        graph.edge(nodes.merge["wanted"], sender["wanted"], Latest("fragment"), to=learner.at("slot"))
        graph.edge(sender["values"], nodes.merge["values"], Latest("fragment"), to=syncer.at("fragment"))
        graph.edge(tick["tick"], nodes.merge["tick"], Latest())


KEEPING: Final[dict[str, ShardKeeping]] = {"answers": KeptAnswers(), "sums": KeptSums()}
