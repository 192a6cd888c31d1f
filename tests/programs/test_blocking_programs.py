"""The blocking programs of the family in virtual time: that they train, wait, tell the truth, and refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus import Program
from isthmus.ops.island.optimizer import adamw
from isthmus.ops.island.schedule import RateSchedule
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.job import Job
from isthmus.programs.update_settings import INTERVAL_MAX, outer_settings
from isthmus.programs.wings.simulation.pytest_plugin import WorldResult, Worlds
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph.template import Reference
from tests.effort import long, soaked
from tests.patience import PATIENCE
from tests.programs.family import ADAM, final_model, task

STEPS = 60
BLOCKING = ("diloco", "streaming-diloco", "data-parallel", "elastic-data-parallel")
SETTINGS: dict[str, dict[str, int]] = {"diloco": {"interval": 6}, "streaming-diloco": {"interval": 6, "fragments": 6}}
WITH_OUTER_STEPS = tuple(SETTINGS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WorldResult]]:
    """Each program once, one learner in four at half speed."""
    worlds = Worlds(tmp_path_factory.mktemp("family"))
    try:
        yield {
            name: worlds.run(
                Program(name, **SETTINGS.get(name, {})),
                task=ADAM,
                learners=4,
                steps=STEPS,
                speeds=(1, 1, 1, 0.5),
            )
            for name in BLOCKING
        }
    finally:
        worlds.close()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKING)
def test_it_trains_the_budget_exactly_and_leaves_a_model(runs: dict[str, WorldResult], name: str) -> None:
    result = runs[name]
    assert result.eval_loss is not None
    assert result.eval_loss < 0.8 * result.summary["eval_loss_initial"]
    assert result.summary["tokens_total"] == STEPS * 4 * 16
    assert [slot.steps for slot in result.slots.values()] == [STEPS] * 4
    model = final_model(result.folder)
    assert {tensor.split("[")[0] for tensor in model} == {f"{kind}-{i}" for kind in ("layer", "bias") for i in range(6)}
    assert all(np.isfinite(tensor).all() for tensor in model.values())


@pytest.mark.further
@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKING)
def test_the_fast_wait_for_the_slow_one_and_it_shows(runs: dict[str, WorldResult], name: str) -> None:
    waited = {row["learner"]: row["stall_seconds"] for row in runs[name].summary["per_learner"]}
    assert min(waited[slot] for slot in range(3)) > 0.3  # Half of 60 steps of 20 ms, but for the last round's.
    assert waited[3] < 0.3 * waited[0] or name in ("data-parallel", "elastic-data-parallel")


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_OUTER_STEPS)
def test_its_accounts_add_up_and_everybody_contributes(runs: dict[str, WorldResult], name: str) -> None:
    summary = runs[name].summary
    assert summary["contributors_mean"] == 4.0
    assert summary["syncer_shards"] == 1
    for account in summary["fragment_accounts"]:
        assert sum(account[part] for part in ("merged", "overlapped")) == account["trained"]
    if name == "diloco":
        assert summary["outer_steps"] == STEPS // 6 - 1  # The last one is the end.
        assert summary["tokens_overlapped"] == 0


@pytest.mark.parametrize("name", BLOCKING)
def test_losses_that_are_not_finite_are_counted_in_every_program(runs: dict[str, WorldResult], name: str) -> None:
    summary = runs[name].summary
    assert summary["losses_not_finite"] == 0
    assert {row["losses_not_finite"] for row in summary["per_learner"]} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data-parallel", "elastic-data-parallel"])
def test_without_outer_steps_nothing_is_told_of_any(runs: dict[str, WorldResult], name: str) -> None:
    summary = runs[name].summary
    figures = ("fragments", "outer_steps", "contributors_mean", "merged_share", "tokens_merged", "tokens_lost")
    assert [summary[figure] for figure in figures] == [0] * len(figures)
    assert summary["tokens_pending"] == summary["tokens_total"]


@pytest.mark.slow
def test_the_learners_of_data_parallel_report_the_same_step_and_hold_the_same_model(
    runs: dict[str, WorldResult],
) -> None:
    """The ring and the syncer add in another order, so the two programs agree but for rounding."""
    ring, star = (final_model(runs[name].folder) for name in ("data-parallel", "elastic-data-parallel"))
    assert all(np.allclose(ring[tensor], star[tensor], atol=1e-3) for tensor in ring)


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, long(3)])
@pytest.mark.parametrize("name", BLOCKING)
def test_any_number_of_learners_will_do(world: Worlds, name: str, learners: int) -> None:
    result = world.run(name, task=ADAM, learners=learners, steps=6)
    assert [slot.steps for slot in result.slots.values()] == [6] * learners


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["diloco", "elastic-data-parallel", soaked("streaming-diloco"), soaked("data-parallel")]
)
def test_nothing_depends_on_how_long_anything_takes(world: Worlds, name: str) -> None:
    """With an optimizer that follows the run's progress, of which learners hear by messages, and codes both ways."""
    scheduled = task(adamw(peak=1e-2, schedule=RateSchedule(0.1), weight_decay=0.1, clip=1.0))
    coded = {"push": "int4", "update": "int4"} if name in WITH_OUTER_STEPS else {}
    program = Program(name, **SETTINGS.get(name, {}), **coded)
    calm = world.run(program, task=scheduled, learners=3, steps=24, jitter=0.0)
    wild = world.run(
        program, task=scheduled, learners=3, steps=24, jitter=0.4, delay_ms=17, speeds=(0.3, 1, 2), step_ms=30
    )
    assert wild.eval_loss == calm.eval_loss
    ours, theirs = final_model(wild.folder), final_model(calm.folder)
    assert all(np.array_equal(ours[tensor], theirs[tensor]) for tensor in theirs)


# -- who holds up whom -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("diloco", {"outer-step", "merge", "fragment-send", "inner-step"}),
        ("streaming-diloco", {"outer-step", "merge", "fragment-send", "inner-step"}),
        ("data-parallel", {"ring", "inner-step"}),
        ("elastic-data-parallel", {"caller", "average", "inner-step"}),
    ],
)
def test_the_graph_shows_who_holds_up_a_step(tmp_path: Path, name: str, holds: set[str]) -> None:
    request = prepare(name, ADAM, run_dir=tmp_path / "run")
    verdict = request.proof["inner-step"]
    assert not verdict.free_running
    assert holds <= set(verdict.blocked_by)
    assert request.proof["record"].free_running


@pytest.mark.process
def test_building_a_graph_needs_neither_jax_nor_numba() -> None:
    script = """
import sys
from isthmus.programs import SHIPPED
from isthmus.programs.engine.request.request import Program
from isthmus.programs.job import Job, TensorSpec
from isthmus.runtime.graph.template import Reference
for name in SHIPPED:
    layout = (TensorSpec("w", (8, 8), "float32", level=0),)
    Program(name).build(Job(name, Reference("a:b"), layout, 64, 10_000, 2, modules=(2,)))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "numba", "optax"}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.strip() == "[]", done.stderr


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "found"),
    [
        ("diloco", {"interval": 0, "outer_lr": 0.0}, ["program.interval of diloco", "program.outer_lr of diloco"]),
        ("diloco", {"interval": INTERVAL_MAX + 1, "outer_momentum": 1.0}, ["interval", "outer_momentum"]),
        ("diloco", {"merge": "median"}, ["merge"]),
        ("streaming-diloco", {"fragments": 60, "alpha": 1.5}, ["expected 1 to 59, the rows", "program.alpha"]),
        ("streaming-diloco", {"interval": 3}, ["program.interval", "at least the number of fragments, 8"]),
        ("streaming-diloco", {"overlap": 24}, ["program.overlap", "below interval = 24"]),
    ],
)
def test_settings_out_of_range_are_all_told(
    tmp_path: Path, name: str, settings: dict[str, Any], found: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        prepare(Program(name, **settings), ADAM, run_dir=tmp_path / "run")
    assert all(part in str(error.value) for part in found), str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_outer_step_follows_the_number_of_sweeps_unless_it_is_given() -> None:
    job = Job("diloco", Reference("a:b"), (), tokens_per_batch=10, tokens=59 * 240, learners=1)
    assert outer_settings(job, 24, None, None) == (1.0, 0.0)
    assert outer_settings(job, 23, None, None) == (0.4, 0.7)
    assert outer_settings(job, 24, 0.5, 0.9) == (0.5, 0.9)
