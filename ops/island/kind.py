"""The kinds of islands: how the processes of a learner's island make that learner.

An island is of one process, of several that live and end together (`gang_kind`), or of a kind that a wing adds.
Inner-step asks the kind of its island for the learner, and knows no more of it. Which kind it is, the island says that
a host was given; the kind of one process is here.

No kind may be named in inner-step, and none may know another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, final

from isthmus.ops.data.batches_node import InOrder
from isthmus.ops.data.positions import Step
from isthmus.ops.exchange import frozen_leaves
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.gang.mesh_island import LearnerDevices
from isthmus.ops.island.contract import LastingLearning, LearnerSource, SoleLearning
from isthmus.ops.island.life import LearnerLife, lower_priority


class LearnerParts(NamedTuple):
    """What a learner is made of.

    Attributes:
        alpha: the share of its own fragment that survives an adoption.
        pushes: the formats, other than float32, in which its outer gradients may leave.
        carries: whether adoptions keep what was trained since the last answer.
        frozen: the digests of leaves that are not trained; a learner that makes others refuses to open.
    """

    task: Any
    fragments: Sequence[Fragment]
    life: LearnerLife
    alpha: float = 0.0
    pushes: Sequence[str] = ()
    carries: bool = False
    frozen: Digests = ()


class Computed(NamedTuple):
    """What processes need that compute for a host, each under an own life: `batches` are those of a slot, None for the
    process that leads, which is told the batch of each step."""

    task: Any
    fragments: tuple[Fragment, ...]
    alpha: float
    batches: InOrder | None = None


class Attending(Protocol):
    """The part of a process that does not lead its island."""

    def attend(self, seconds: float) -> bool:
        """Do what the leader orders next, if it orders anything in so many seconds; False once the leader is gone."""


class IslandKind(Protocol):
    """One way to be an island; each method is called in the process of a host of it, in the thread of a node."""

    def learner(self, parts: LearnerParts, where: Callable[[], Step], now: Callable[[], int]) -> LastingLearning:
        """The learner, in the process that leads.

        `where` returns the position of a step's batch in its slot, `now` the time in nanoseconds.
        """

    def attendance(self, parts: LearnerParts, first: Callable[[], Any], batches: Callable[[], InOrder]) -> Attending:
        """The part of another process.

        `first` makes a batch of the shape of all, `batches` are those of the slot.
        """


@final
class SoleKind:
    """The kind of an island of one process, with these devices; None for all that its process sees."""

    def __init__(self, devices: LearnerDevices | None) -> None:
        self._devices = devices

    def learner(self, parts: LearnerParts, where: Callable[[], Step], now: Callable[[], int]) -> SoleLearning:
        learner = self._made(parts)
        frozen_leaves.check(parts.frozen, learner)
        return learner

    def attendance(self, parts: LearnerParts, first: Callable[[], Any], batches: Callable[[], InOrder]) -> Attending:
        raise AssertionError("an island of one process has no other")

    def _made(self, parts: LearnerParts) -> SoleLearning:
        if isinstance(parts.task, LearnerSource):
            return parts.task.learner(parts.fragments, life=parts.life, alpha=parts.alpha)
        lower_priority()  # Before jax makes its threads, which inherit it.
        from isthmus.ops.island.jax_learner import Learner

        return Learner(
            parts.task,
            parts.fragments,
            life=parts.life,
            alpha=parts.alpha,
            island=self._devices,
            pushes=parts.pushes,
            carries=parts.carries,
        )


class GivenIsland(LearnerDevices, Protocol):
    """The island that a host was given."""

    def kind(self) -> IslandKind | None:
        """Its kind; None for one of one process."""


def kind_of(island: GivenIsland | None) -> IslandKind:
    """The kind of the island that a host was given, None for one that may use all that its process sees."""
    kind = None if island is None else island.kind()
    return SoleKind(island) if kind is None else kind
