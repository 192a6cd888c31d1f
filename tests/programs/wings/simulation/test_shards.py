"""The sharded syncer in virtual time: whatever learners and shards die, nothing is merged twice, and the run ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import Program, Task
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.effort import examples
from tests.programs.wings.simulation.shards_world import Death, Mortals
from tests.programs.wings.simulation.test_world import LINEAR

PARTS = ("merged", "overlapped", "refused", "lost", "pending")
LEARNERS = 3
FRAGMENTS = 4
STEPS = 50


@pytest.fixture(scope="module")
def linear() -> Task:
    names: dict[str, Task] = {}
    exec(LINEAR, names)
    return names["task"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worlds")


def mortals(folder: Path, task: Task, shards: int, seed: int = 0) -> Mortals:
    """A run of short rounds: each fragment is due every 8 steps."""
    program = Program("decoupled-diloco", fragments=FRAGMENTS, shards=shards, interval=8, overlap=4)
    run = folder / f"run-{len(list(folder.iterdir()))}"
    return Mortals(run, program, task, learners=LEARNERS, steps=STEPS, seed=seed)


def check_end(world: Mortals) -> None:
    """Every fragment is final, and every trained token is in one place of its account."""
    assert set(world.status["epochs"]) == set(range(world.counts["syncer"]))
    names = sorted(path.name for path in (world.request.run_dir / "snapshots" / "final").iterdir())
    assert names == [f"fragment-{p}.safetensors" for p in range(FRAGMENTS)]
    for account in world.summary["fragment_accounts"]:
        assert min(account[part] for part in PARTS) >= 0, account
        assert sum(account[part] for part in PARTS) == account["trained"] == world.summary["tokens_total"]
        assert account["pending"] == 0


hosts = st.sampled_from([*(f"learner/{slot}" for slot in range(LEARNERS)), *(f"syncer/{shard}" for shard in range(4))])
deaths = st.builds(Death, hosts, st.floats(50, 800), st.floats(30, 400))


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=examples(15, least=5), deadline=None)
@given(
    shards=st.integers(1, FRAGMENTS),
    speeds=st.lists(st.floats(0.4, 1.0), min_size=LEARNERS, max_size=LEARNERS),
    died=st.lists(deaths, max_size=6),
    seed=st.integers(0, 99),
)
def test_whatever_dies(
    linear: Task, folder: Path, shards: int, speeds: list[float], died: list[Death], seed: int
) -> None:
    """What must hold at every moment is asserted by the witness in the world."""
    world = mortals(folder, linear, shards, seed)
    world.run(speeds=tuple(speeds), deaths=tuple(died))
    check_end(world)


@pytest.mark.slow
def test_a_shard_that_dies_goes_on_from_the_newest_version_while_the_other_merges(linear: Task, folder: Path) -> None:
    world = mortals(folder, linear, shards=2)
    world.run(deaths=(Death("syncer/1", 200, 150),))
    check_end(world)
    assert world.died == ["syncer/1"]
    assert sorted(p for p, _ in world.witness.recovered) == [1, 3]
    assert [world.witness.newest[p][0] for p in range(FRAGMENTS)] == [1, 2, 1, 2]
    assert world.status["epochs"] == {0: 1, 1: 2}
    merges = [json.loads(line) for line in (world.request.run_dir / "merges.jsonl").read_text().splitlines()]
    zero = world.status["zero"] / 1e9
    meanwhile = {merge["fragment"] for merge in merges if 0.2 <= merge["time"] + zero < 0.35}
    assert meanwhile == {0, 2}
    assert all(report["waited"] == 0 for report in world.status["learners"].values())
    # No learner died, so what is merged is known exactly.
    for account in world.summary["fragment_accounts"]:
        p = account["fragment"]
        work = world.witness.work[p, world.witness.newest[p]]
        assert account["merged"] == sum(end - begin for *_, begin, end in work)


@pytest.mark.slow
def test_a_version_that_everybody_lost_but_its_shard_reaches_those_who_come_back(linear: Task, folder: Path) -> None:
    """A shard has just come back, with what the learners held, when all of them die: they get it from the shard."""
    world = mortals(folder, linear, shards=2)
    world.run(deaths=(Death("syncer/1", 200, 100), *(Death(f"learner/{slot}", 338, 60) for slot in range(LEARNERS))))
    check_end(world)
    assert sorted(p for p, _ in world.witness.recovered) == [1, 3]


@pytest.mark.slow
def test_a_learner_that_comes_back_after_the_end_does_not_begin_anew(linear: Task, folder: Path) -> None:
    world = mortals(folder, linear, shards=2)
    world.run(deaths=(Death("learner/1", 495, 60), Death("syncer/1", 520, 400)))
    check_end(world)
    assert world.died == ["learner/1", "syncer/1"]
    assert world.status["learners"][1]["step"] == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 4])
def test_a_run_trains_as_with_one_shard(world: Worlds, linear: Task, shards: int) -> None:
    settings: dict[str, Any] = {"task": linear, "learners": 4, "steps": 100}
    one = world.run(Program("decoupled-diloco", fragments=FRAGMENTS), **settings)
    more = world.run(Program("decoupled-diloco", fragments=FRAGMENTS, shards=shards), **settings)
    assert more.waits == 0
    assert more.summary["syncer_shards"] == shards
    assert np.log(more.eval_loss) == pytest.approx(np.log(one.eval_loss), abs=0.5)
    # A neighbour holds the first versions at once, so merging begins some 150 ms earlier than with one shard.
    assert 0 <= more.summary["outer_steps"] - one.summary["outer_steps"] <= 2 * FRAGMENTS
    assert more.summary["contributors_mean"] > 3.8
