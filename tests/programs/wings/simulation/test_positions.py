"""Learners that die: where the next lives begin in their slots' batches, of a function and of a stream.

What is merged of a slot is compared with the batches that its learners really stepped on, as the test sees them.
"""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.simulation.invariants_recoveries import PositionsChecker
from isthmus.programs.wings.simulation.toy_task import STREAMED, ToyLearner
from isthmus.programs.wings.simulation.universe import Outcome, Shape, outcome_of
from isthmus.runtime.sim.faults import Kill
from isthmus.runtime.sim.network import Climate

KILLS = 20
PROGRAMS = (
    pytest.param("decoupled-diloco", {"fragments": 3, "interval": 6, "shards": 2}, id="decoupled-diloco"),
    pytest.param("diloco", {"interval": 6}, id="diloco", marks=pytest.mark.soak),
)
SEEDS = range(1, 11)


def killed_run(program: str, settings: dict[str, Any], *more: Any, seed: int = 0) -> Outcome:
    """Five learners, of which one is killed every second or so: each four times, for six lives are all that it has."""
    kills = tuple(Kill(f"learner/{i % 5}", at=round(2.0 + 1.1 * i + 0.13 * (i * seed % 5), 3)) for i in range(KILLS))
    shape = Shape(
        seed=seed,
        learners=5,
        steps=260,
        step_ms=100.0,
        program=Program(program, **settings),
        climate=Climate(latency=0.005, jitter=0.002),
        speeds=(1.0, 0.8, 0.6, 1.0, 0.9),
        faults=kills,
        task=STREAMED,
    )
    return outcome_of(shape, *more)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("program", "settings"), PROGRAMS)
def test_no_batch_is_trained_twice_among_what_is_merged_though_learners_are_killed_20_times(
    program: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: dict[int, list[int]] = {}
    step = ToyLearner.step

    def noted(self: ToyLearner, batch: Any, progress: float) -> float:
        trained.setdefault(id(self), []).append(int(batch["position"]))
        kept.append(self)
        return step(self, batch, progress)

    kept: list[ToyLearner] = []
    monkeypatch.setattr(ToyLearner, "step", noted)
    checker = PositionsChecker()
    outcome = killed_run(program, settings, checker)
    assert outcome.violation is None
    assert outcome.faults["kill"] == KILLS
    assert len([life for life in checker.merged if life[1] > 1]) >= 5  # Later lives have trained what was merged.
    for life, batches in checker.merged.items():
        wanted = set(range(batches.begin, batches.end))
        assert any(wanted <= set(positions) for positions in trained.values()), (life, batches)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("program", "settings"),
    [*PROGRAMS, ("streaming-diloco", {"fragments": 2, "interval": 6, "overlap": 2})],
    ids=["decoupled-diloco", "diloco", "streaming-diloco"],
)
def test_nor_where_they_are_killed_at_other_moments(program: str, settings: dict[str, Any], seed: int) -> None:
    outcome = killed_run(program, settings, seed=seed)
    assert outcome.violation is None
    assert outcome.faults["kill"] == KILLS
