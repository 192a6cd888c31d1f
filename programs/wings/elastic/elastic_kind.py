"""The kind of an island of several processes that goes on without some of them.

The processes that compute are not the hosts: each host starts one for every form of the island, which ends with that
form (`worker`). The leader's host has the learner that asks them (`learner`), the others only see to theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from isthmus.ops.data.batches_node import InOrder
from isthmus.ops.data.positions import Step
from isthmus.ops.gang.mesh_island import ElasticGang
from isthmus.ops.island.contract import LastingLearning
from isthmus.ops.island.kind import LearnerParts
from isthmus.programs.wings.elastic.learner import ElasticLearner, HostWorker


@final
class ElasticKind:
    """The kind of the island of which this host is one."""

    def __init__(self, gang: ElasticGang) -> None:
        self._gang = gang

    def learner(self, parts: LearnerParts, where: Callable[[], Step], now: Callable[[], int]) -> LastingLearning:
        """The learner that asks the processes; they have the parts from the body that was forked with them."""
        return ElasticLearner(self._gang, where=where, now=now)

    def attendance(
        self, parts: LearnerParts, first: Callable[[], Any], batches: Callable[[], InOrder]
    ) -> ElasticFollower:
        """What sees to the process of this host; that one has batches of its own."""
        return ElasticFollower(HostWorker(self._gang))


@final
class ElasticFollower:
    """A host that sees to its process, until its daemon ends it."""

    def __init__(self, worker: HostWorker) -> None:
        self._worker = worker

    def attend(self, seconds: float) -> bool:
        self._worker.look(seconds)
        return True
