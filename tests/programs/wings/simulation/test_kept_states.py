"""Data-parallel programs go on from their snapshots: what that undoes is lost, the rest as if nothing had happened."""

from __future__ import annotations

from typing import Any

import jax
import optax
import pytest

from isthmus import Program
from isthmus.programs.engine.results.lines import EvaluationLine, ReportLine, read
from isthmus.programs.wings.simulation.pytest_plugin import WorldResult, Worlds
from isthmus.runtime.errors import RunError
from isthmus.runtime.sim.faults import Kill
from tests.effort import soaked
from tests.programs.family import ADAM, task

STEPS, LEARNERS = 60, 3
STEP = LEARNERS * 16
"""Tokens."""
ALL = [Kill(f"learner/{slot}", at_step=40) for slot in range(LEARNERS)]


def run(world: Worlds, name: str, faults: list[Kill], seconds: float = 0.3) -> WorldResult:
    program = Program(name, snapshot_seconds=seconds)
    return world.run(program, task=ADAM, learners=LEARNERS, steps=STEPS, faults=faults)


def evaluations(result: WorldResult) -> dict[tuple[int, str], list[float]]:
    """(tokens, kind) -> the losses of all evaluations there."""
    found: dict[tuple[int, str], list[float]] = {}
    for line in read(result.folder / "evaluations.jsonl", EvaluationLine):
        found.setdefault((line.tokens, line.kind), []).append(line.eval_loss)
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [soaked(0.3), 1e6])
def test_learners_that_all_begin_again_have_the_bits_of_a_run_without_deaths(world: Worlds, seconds: float) -> None:
    calm, struck = run(world, "data-parallel", []), run(world, "data-parallel", ALL, seconds)
    assert struck.faults == {"kill": LEARNERS}
    # Evaluations at the same tokens are the same to the last bit, whichever life made them.
    known, found = evaluations(calm), evaluations(struck)
    both = [where for where in found if where[1] == "during" and where in known]
    assert len(both) >= 8
    assert all(set(found[where]) == set(known[where]) for where in both)
    # The budget is of all that was trained, and what a snapshot undid is lost.
    assert (calm.summary["tokens_lost"], calm.summary["tokens_total"]) == (0, STEPS * STEP)
    lost, total = struck.summary["tokens_lost"], struck.summary["tokens_total"]
    assert total >= STEPS * STEP
    assert (0 < lost < 30 * STEP) if seconds < 1 else (30 * STEP < lost < 45 * STEP)
    assert struck.summary["goodput"] < calm.summary["goodput"]


@pytest.mark.long
@pytest.mark.slow
def test_one_that_comes_back_alone_ends_the_run_and_says_why(world: Worlds) -> None:
    with pytest.raises(RunError, match="learner 1 died, and data-parallel cannot go on without it"):
        run(world, "data-parallel", ALL[1:2])


@pytest.mark.long
@pytest.mark.slow
def test_the_next_life_of_the_syncer_goes_back_to_the_last_snapshot(world: Worlds) -> None:
    calm = run(world, "elastic-data-parallel", [])
    struck = run(world, "elastic-data-parallel", [Kill("syncer/0", at_step=40)])
    assert struck.faults == {"kill": 1}
    assert [struck.slots[slot].restarts for slot in range(LEARNERS)] == [0] * LEARNERS
    assert 0 < struck.summary["tokens_lost"] < 40 * STEP
    assert struck.summary["tokens_total"] >= STEPS * STEP
    assert calm.eval_loss is not None
    assert struck.eval_loss is not None
    assert struck.eval_loss < 1.2 * calm.eval_loss
    twice = [Kill("syncer/0", at_step=30), Kill("syncer/0", at_step=50), Kill("learner/0", at_step=45)]
    assert run(world, "elastic-data-parallel", twice).faults == {"kill": 3}


@pytest.mark.slow
def test_without_a_snapshot_a_syncer_that_died_ends_the_run_and_says_why(world: Worlds) -> None:
    with pytest.raises(RunError, match="died before any learner had taken a snapshot"):
        run(world, "elastic-data-parallel", [Kill("syncer/0", at_step=40)], seconds=1e6)


def hosts(name: str, at: float) -> list[Kill]:
    """All of them, at once: what is left is the disk."""
    others = ["evaluator/0", "recorder/0", *(["syncer/0"] if name.startswith("elastic") else [])]
    return [Kill(each, at=at) for each in (*(f"learner/{slot}" for slot in range(LEARNERS)), *others)]


def same_model(calm: WorldResult, struck: WorldResult) -> bool:
    """Whether the final models have equal bytes; there is one."""
    files = sorted(path.name for path in (calm.folder / "snapshots" / "final").iterdir())
    folders = [result.folder / "snapshots" / "final" for result in (calm, struck)]
    assert files
    return all(len({(folder / name).read_bytes() for folder in folders}) == 1 for name in files)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["data-parallel", "elastic-data-parallel"])
def test_after_the_death_of_everything_the_model_has_the_bits_of_a_run_without_deaths(world: Worlds, name: str) -> None:
    calm, struck = run(world, name, []), run(world, name, hosts(name, 1.3))
    assert struck.faults == {"kill": len(hosts(name, 1.3))}
    assert 0 < struck.summary["tokens_lost"] < 30 * STEP
    assert struck.summary["tokens_total"] == STEPS * STEP + struck.summary["tokens_lost"]
    assert same_model(calm, struck)


def _following() -> optax.GradientTransformationExtraArgs:
    """Adam, whose rate follows the progress of the run: what learners know of each other's tokens is in the bits."""
    adam = optax.scale_by_adam()

    def update(gradients: Any, state: Any, params: Any = None, *, progress: Any, **_: Any) -> Any:
        steps, state = adam.update(gradients, state, params)
        return jax.tree.map(lambda step: -1e-2 * (1 - 0.9 * progress) * step, steps), state

    return optax.GradientTransformationExtraArgs(adam.init, update)


STREAMS = {"interval": 8, "fragments": 4}
"""A fragment is captured every other step: with an overlap of 5, up to three are under way at any boundary."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "seed", "deaths"),
    [
        *[soaked("diloco", {"interval": 4}, seed, [40 + 3.7 * seed]) for seed in (1, 2)],
        soaked("diloco", {"interval": 4}, 3, [51.1]),
        *[soaked("streaming-diloco", {**STREAMS, "overlap": tau}, 1, [43.7]) for tau in (0, 1)],
        soaked("streaming-diloco", {**STREAMS, "overlap": 1}, 2, [47.4]),
        *[soaked("streaming-diloco", {**STREAMS, "overlap": 5}, seed, [40 + 3.7 * seed]) for seed in (1, 2)],
        ("streaming-diloco", {**STREAMS, "overlap": 5}, 3, [31.1, 44.2]),
        soaked("streaming-diloco", {**STREAMS, "overlap": 1}, 3, [31.1, 40.2, 49.3]),
        soaked("streaming-diloco", {"interval": 12, "fragments": 5, "overlap": 2, "alpha": 0.0}, 1, [43.7]),
        *[soaked("diloco", {"interval": 4, "update": coded, "push": coded}, 3, [51.1]) for coded in ("int8", "int4")],
        *[
            soaked("streaming-diloco", {**STREAMS, "overlap": 5, "update": coded, "push": coded}, 3, [31.1, 44.2])
            for coded in ("bf16", "int8", "int4")
        ],
        soaked("streaming-diloco", {**STREAMS, "overlap": 1, "update": "int8"}, 2, [47.4]),
    ],
)
def test_learners_in_lock_step_go_on_from_a_cut_with_the_bits_of_a_run_without_deaths(
    world: Worlds, name: str, settings: dict[str, Any], seed: int, deaths: list[float]
) -> None:
    program, trained = Program(name, **settings, outer_lr=0.7, outer_momentum=0.9), task(_following())
    faults = [each for at in deaths for each in hosts("elastic", at)]

    def ran(faults: list[Kill]) -> WorldResult:
        return world.run(program, task=trained, learners=LEARNERS, steps=STEPS, step_ms=1000, seed=seed, faults=faults)

    calm, struck = ran([]), ran(faults)
    assert struck.faults == {"kill": len(faults)}
    more = struck.summary["tokens_total"] - calm.summary["tokens_total"]
    assert 0 < more < STEPS * STEP
    # Of what was trained twice, either is in the model, and what of the first was to be overwritten is not lost.
    assert struck.summary["tokens_merged"] == pytest.approx(calm.summary["tokens_merged"], rel=1e-12)
    assert struck.summary["books"]["differences"] == []
    began = [line.began[0] for line in read(struck.folder / "metrics.jsonl", ReportLine) if line.began]
    assert began == ["snapshot"] * LEARNERS * len(deaths)
    assert same_model(calm, struck)
