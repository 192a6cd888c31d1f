"""The pytest plugin of isthmus: the `world` fixture, which runs whole programs in one thread, in virtual time.

    def test_mine(world):
        result = world.run("decoupled-diloco", task=task, learners=4, steps=200)
        assert result.waits == 0 and result.eval_loss < 1.0

Bodies compute for real; the test sets their durations, and those of transfers. The same arguments give the same losses
and the same tape, byte for byte. With faults the hosts are on machines of their own, over the real wire on simulated
sockets, and are restarted; without, over a simpler network that is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from isthmus.programs.engine.request.program import Program
    from isthmus.programs.task import AnyTask
    from isthmus.runtime.host.contract import Span
    from isthmus.runtime.sim.faults import Fault
    from isthmus.runtime.sim.universe import Universe
    from isthmus.runtime.sim.world import World


pytest.register_assert_rewrite("isthmus.runtime.channels.conformance")


@dataclass(frozen=True, slots=True)
class Slot:
    """The figures of one learner."""

    steps: int
    tokens: int
    restarts: int


@dataclass(frozen=True, slots=True)
class WorldResult:
    """The result of a run in a world.

    `waits` is the virtual time, in nanoseconds, that inner-steps were kept waiting by a missing item or credit; `tapes`
    hold the encoded tape of every host by name (with faults, of every life: 'learner/2#1'); `spans` every firing and
    transfer; `faults` counts, by kind, those that really happened.
    """

    summary: dict[str, Any]
    eval_loss: float | None
    waits: int
    slots: dict[int, Slot]
    tapes: dict[str, bytes]
    spans: list[Span]
    folder: Path
    status: dict[str, Any]
    faults: dict[str, int]


class Worlds:
    """Runs programs in virtual time; their run folders are under `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._open: list[World | Universe] = []

    def run(
        self,
        program: Program | str = "decoupled-diloco",
        *,
        task: AnyTask,
        learners: int = 4,
        steps: int = 100,
        seed: int = 0,
        step_ms: float = 10.0,
        speeds: Sequence[float] = (),
        delay_ms: float = 1.0,
        jitter: float = 0.05,
        seconds_max: float = 3600.0,
        faults: Sequence[Fault] = (),
    ) -> WorldResult:
        """Train until `steps` inner steps a learner (on average) are done, and the end is merged.

        Arguments:
            program: by default the one of `isthmus train`.
            task: what is trained.
            learners: how many.
            steps: of each, on average.
            seed: from which everything is drawn.
            step_ms: the time of an inner step; any other firing takes a fiftieth.
            speeds: by slot, how many times faster a learner is; 1 where none is given.
            delay_ms: how long items travel between hosts.
            jitter: of all of these, a share.
            seconds_max: the virtual seconds that it may take.
            faults: those of `isthmus.runtime.sim`; they name hosts by replica, and machines: every learner and syncer
                has its own ('learner-2'), the others are at 'home'.

        RequestError for a request that is wrong, RunError if a body fails or a fault did not happen, TimeoutError if
        the run is not over after `seconds_max`.
        """
        from isthmus.programs.engine.request import new_folder
        from isthmus.programs.engine.request.request import prepare
        from isthmus.programs.wings.simulation.virtual_run import VirtualPace, VirtualRun
        from isthmus.runtime.sim.universe import Universe

        self._count += 1
        tokens = steps * learners * task.tokens_mean(learners)
        budget: dict[str, Any] = {"learners": learners, "tokens": tokens, "seed": seed}
        request = prepare(program, task, run=budget, run_dir=self._folder / f"run-{self._count}")
        new_folder.create(request.run_dir, request.config_text)
        ran = VirtualRun(request, VirtualPace(tuple(speeds), step_ms, delay_ms, jitter), faults)
        self._open.append(ran.world)
        ran.run(seconds_max)
        world, status = ran.world, ran.status
        return WorldResult(
            summary=ran.summary,
            eval_loss=ran.summary["eval_loss_final"],
            waits=sum(report["waited"] for report in status["learners"].values() if report["waited"] is not None),
            slots=_slots(status["learners"]),
            tapes=world.tape(),
            spans=list(ran.trace.spans),
            folder=request.run_dir,
            status=status,
            faults=dict(world.injector.counts) if isinstance(world, Universe) else {},
        )

    def close(self) -> None:
        """Close every world."""
        for world in self._open:
            world.close()


def _slots(learners: Mapping[int, Mapping[str, Any]]) -> dict[int, Slot]:
    return {
        slot: Slot(report["step"], report["tokens"], report["incarnation"] - 1) for slot, report in learners.items()
    }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Worlds]:
    """Whole programs in virtual time: `world.run(program, task=task, learners=4, steps=200)`."""
    worlds = Worlds(tmp_path)
    yield worlds
    worlds.close()
