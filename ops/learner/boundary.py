"""The boundaries of a learner between two steps, as its companions see them: a judge, the last model of a loop.

Inner-step decides what happens at a boundary, and in which order. It calls its companions at six named points, and
knows no more of them. A task names the companions of its learners (`AccompaniedTask`); most tasks have none. A
companion reads the boundary, and changes the learner by the calls of its interface only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import CompanionReport
from isthmus.ops.exchange.token_accounts import Odometer
from isthmus.ops.island.contract import LastingLearning
from isthmus.ops.learner.answers import HeldFragment, StepMetrics
from isthmus.ops.learner.run_terms import RunTerms
from isthmus.ops.learner.step_times import StepTimes


@final
@dataclass(frozen=True, slots=True)
class Boundary:
    """What is there at the boundaries of one life of a learner.

    Attributes:
        context: that of the body.
        held: the newest version of each of its `fragments`, None before the first one.
        metrics: the scalars of its steps.
        run: what this learner knows of its run.
        trained: returns how many of these are known to be trained.
        phase: returns the phase of this learner.
        publish: shows a phase in the status of the host.
    """

    context: Any
    learner: LastingLearning
    fragments: Sequence[Fragment]
    held: Sequence[HeldFragment | None]
    odometer: Odometer
    times: StepTimes
    metrics: StepMetrics
    run: RunTerms
    trained: Callable[[], int]
    phase: Callable[[], str]
    publish: Callable[[str], None]


class Companion:
    """A companion of a learner. It inherits the points that it has no use for."""

    def adopting(self, *, is_last: bool) -> None:
        """Versions are about to be adopted at this boundary; `is_last`: no step follows it, as far as it can know."""

    def adopted(self, fragment: int, *, is_last: bool) -> None:
        """A version of a fragment was adopted, the last one of the run or another."""

    def before_step(self) -> bool:
        """The answers have left, and the step is not begun; whether there is something new to report."""
        return False

    def published(self) -> Mapping[str, int]:
        """What the status of the host has of it."""
        return {}

    def reported(self) -> CompanionReport:
        """What a report to the recorder has of it: in each one until it changes, because a report may be overtaken."""
        return {}

    def closing(self) -> None:
        """This life of the learner is over: no boundary follows. Other threads than the node's may call it."""


@runtime_checkable
class AccompaniedTask(Protocol):
    """A task whose learners have companions."""

    def companions(self, boundary: Boundary) -> Iterable[Companion]:
        """The companions of a learner that exchanges fragments, in the order in which they are called."""


def companions_of(boundary: Boundary, task: Any) -> tuple[Companion, ...]:
    """The companions of a learner of this task."""
    return tuple(task.companions(boundary)) if isinstance(task, AccompaniedTask) else ()
