"""What a shard keeps of a round, as nodes and edges of a graph: every answer until it closes, or the sum of their
values.

Decides nothing of a merge: that is `ops.syncer.merge` and `ops.syncer.summed_merge`. A program makes the node that
sends answers, those that close and merge rounds, and the edges between them, by one of `KEEPING`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.requested import Format
from isthmus.ops.learner.fragment_offer import FragmentOffer
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.syncer.conductor import TICK_NS, Tick
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.summed_merge import Ballot, SummedMerge
from isthmus.programs.settings import Setting
from isthmus.runtime.clock import Duration
from isthmus.runtime.graph.template import AnyOf, Every, Graph, Latest, Node, Queue, Quorum, Role, Route

Push: TypeAlias = Format | Literal["auto"]
Keeps: TypeAlias = Annotated[
    Literal["answers", "sums"] | None,
    Setting(
        "What a shard keeps of a round: every answer until it closes, or the sum of their values, which come a few at "
        "a time once it has closed. Default: sums where answers may take more memory than two copies of the shard's "
        "part of the model.",
        expected="'answers' or 'sums'",
    ),
]


class MergeNodes(NamedTuple):
    """The node of a syncer that closes its rounds, and the one that merges, which may be the same."""

    ballot: Node
    merge: Node


@final
@dataclass(frozen=True, slots=True)
class Level:
    """Where a merge is: of the shards in a role, for whom others answer.

    `prefix` begins the names of its nodes. `shards` and `regions` are as of `SummedMerge`. Answers and values go
    `to_shard` that has their fragment, and what is wanted `to_slot`.
    """

    role: Role
    to_shard: Route
    to_slot: Route
    prefix: str = ""
    shards: int = 1
    regions: int = 1


class ShardKeeping(Protocol):
    """One way to keep a round."""

    tells_ahead: bool
    """Whether answers come without values at first, and so their sender has `wanted` among its inputs."""

    def sender(self, learner: Role, parts: Sequence[Fragment], push: Push) -> Node:
        """The node of a learner that sends its answers."""

    def merging(self, level: Level, parts: Sequence[Fragment], votes: Quorum, terms: Mapping[str, Any]) -> MergeNodes:
        """Those of a syncer; `terms` are the arguments of `MergeBooks`."""

    def connect(self, graph: Graph, sender: Node, nodes: MergeNodes, level: Level, *, most: int) -> None:
        """The edges between them, in a syncer that has `most` rounds at once."""


@final
class KeptAnswers:
    """A shard keeps every answer until its round closes."""

    tells_ahead = False

    def sender(self, learner: Role, parts: Sequence[Fragment], push: Push) -> Node:
        """As `ShardKeeping` says."""
        return learner.node("fragment-send", partial(FragmentSend, parts, push=push))

    def merging(self, level: Level, parts: Sequence[Fragment], votes: Quorum, terms: Mapping[str, Any]) -> MergeNodes:
        """As `ShardKeeping` says."""
        merge = level.role.node(f"{level.prefix}merge", partial(Merge, parts, **terms), fires=votes)
        return MergeNodes(merge, merge)

    def connect(self, graph: Graph, sender: Node, nodes: MergeNodes, level: Level, *, most: int) -> None:
        """As `ShardKeeping` says."""
        graph.edge(sender["answer"], nodes.ballot["answer"], Latest("fragment"), to=level.to_shard)


@final
class KeptSums:
    """A shard keeps the sum of values, which come once a round has closed."""

    tells_ahead = True

    def sender(self, learner: Role, parts: Sequence[Fragment], push: Push) -> Node:
        """As `ShardKeeping` says."""
        offer = partial(FragmentOffer, parts, push=push)
        return learner.node("fragment-send", offer, fires=AnyOf("fragment", "wanted"))

    def merging(self, level: Level, parts: Sequence[Fragment], votes: Quorum, terms: Mapping[str, Any]) -> MergeNodes:
        """As `ShardKeeping` says."""
        told = {"answers": terms["answers"]} if "answers" in terms else {}
        ballot = partial(Ballot, parts, terms["step_tokens"], **told)
        # Where there is one region, it is not said: a graph is as it was.
        within = {"shards": level.shards} | ({"regions": level.regions} if level.regions > 1 else {})
        summed, comes = partial(SummedMerge, parts, **within, **terms), AnyOf("closed", "values", "tick")
        return MergeNodes(
            level.role.node(f"{level.prefix}ballot", ballot, fires=votes),
            level.role.node(f"{level.prefix}merge", summed, fires=comes),
        )

    def connect(self, graph: Graph, sender: Node, nodes: MergeNodes, level: Level, *, most: int) -> None:
        """As `ShardKeeping` says. A tick lets a merge notice that values do not come."""
        tick = level.role.node(f"{level.prefix}tick", Tick, fires=Every(Duration(TICK_NS)))
        graph.edge(sender["answer"], nodes.ballot["answer"], Latest("fragment"), to=level.to_shard)
        graph.edge(nodes.ballot["closed"], nodes.merge["closed"], Queue(capacity=most))
        graph.edge(nodes.merge["wanted"], sender["wanted"], Latest("fragment"), to=level.to_slot)
        graph.edge(sender["values"], nodes.merge["values"], Latest("fragment"), to=level.to_shard)
        graph.edge(tick["tick"], nodes.merge["tick"], Latest())


KEEPING: Final[dict[str, ShardKeeping]] = {"answers": KeptAnswers(), "sums": KeptSums()}
