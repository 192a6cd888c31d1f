"""The whole of Decoupled DiLoCo in virtual time: determinism, accounts, overlap, and who waits for whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus import Program, Task
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.patience import PATIENCE

LINEAR = """
import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key):
    return {"w": jax.random.normal(key, (32, 1)), "b": jnp.zeros(1), "v": jnp.ones((4, 3)), "scalar": jnp.zeros(())}

def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] + params["b"] + params["scalar"] - batch["y"]) ** 2)

def batch(at):
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}

task = Task(init, loss, batch, tokens_per_batch=64, optimizer=optax.adamw(1e-2), evaluation=2)
"""


@pytest.fixture(scope="module")
def linear() -> Task:
    names: dict[str, Task] = {}
    exec(LINEAR, names)
    return names["task"]


def test_the_program_trains_and_nobody_waits(world: Worlds, linear: Task) -> None:
    result = world.run("decoupled-diloco", task=linear, learners=4, steps=150)
    assert result.waits == 0
    assert result.eval_loss is not None
    assert result.eval_loss < 0.5 * result.summary["eval_loss_initial"]
    assert result.summary["contributors_mean"] > 3.5
    assert result.summary["merged_share"] > 0.85
    assert result.summary["uptime"] == 1.0
    assert {slot.restarts for slot in result.slots.values()} == {0}


@pytest.mark.slow
def test_the_accounts_add_up_exactly_for_every_fragment(world: Worlds, linear: Task) -> None:
    result = world.run(Program("decoupled-diloco", fragments=3), task=linear, learners=3, steps=100, jitter=0.3)
    assert len(result.summary["fragment_accounts"]) == 3
    for account in result.summary["fragment_accounts"]:
        parts = [account[part] for part in ("merged", "overlapped", "refused", "lost", "pending")]
        assert sum(parts) == account["trained"] == result.summary["tokens_total"]
        assert min(parts) >= 0
        assert account["pending"] == 0


@pytest.mark.slow
def test_uneven_learners_are_merged_by_grace(world: Worlds, linear: Task) -> None:
    result = world.run("decoupled-diloco", task=linear, learners=4, steps=150, speeds=(1, 1, 0.8, 0.6))
    steps = [result.slots[slot].steps for slot in range(4)]
    assert steps[0] > 1.4 * steps[3]
    assert result.waits == 0
    assert result.summary["contributors_mean"] > 3.0


@pytest.mark.long
@pytest.mark.slow
def test_without_grace_the_others_are_left_out(world: Worlds, linear: Task) -> None:
    with_grace = world.run("decoupled-diloco", task=linear, learners=4, steps=100, speeds=(1, 1, 0.8, 0.6))
    program = Program("decoupled-diloco", grace=False)
    without = world.run(program, task=linear, learners=4, steps=100, speeds=(1, 1, 0.8, 0.6))
    assert without.summary["contributors_mean"] < with_grace.summary["contributors_mean"] - 0.5


def test_one_learner_alone_is_merged_untouched(world: Worlds, linear: Task) -> None:
    result = world.run("decoupled-diloco", task=linear, learners=1, steps=100)
    assert result.summary["contributors_mean"] == 1.0
    assert result.summary["tokens_refused"] == 0


@pytest.mark.slow
def test_two_shards_share_the_fragments(world: Worlds, linear: Task) -> None:
    result = world.run(Program("decoupled-diloco", fragments=4, shards=2), task=linear, learners=2, steps=80)
    assert result.summary["syncer_shards"] == 2
    assert result.summary["outer_steps"] > 4
    assert all(account["pending"] == 0 for account in result.summary["fragment_accounts"])


SCRIPT = """
import hashlib, sys
from pathlib import Path
from mine import task
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
result = Worlds(Path(sys.argv[1])).run("decoupled-diloco", task=task, learners=4, steps=60, seed=int(sys.argv[2]))
tape = hashlib.sha256(b"".join(name.encode() + data for name, data in sorted(result.tapes.items()))).hexdigest()
print(tape, repr(result.eval_loss), (result.folder / "metrics.jsonl").read_text().count("loss"))
"""


def _run_in_a_process(folder: Path, hash_seed: str, seed: int) -> str:
    (folder / "mine.py").write_text(LINEAR)
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(folder)}
    command = [sys.executable, str(folder / "script.py"), str(folder / f"runs-{hash_seed}-{seed}"), str(seed)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
@pytest.mark.soak
def test_the_same_seed_gives_the_same_losses_and_tape_under_any_hash_seed(tmp_path: Path) -> None:
    first, second = (_run_in_a_process(tmp_path, hash_seed, 7) for hash_seed in ("1", "4242"))
    assert first == second
    assert first != _run_in_a_process(tmp_path, "1", 8)


@pytest.mark.slow
def test_the_tape_of_a_run_replays(world: Worlds, linear: Task) -> None:
    from isthmus.programs.engine.request.request import prepare
    from isthmus.runtime.cores.scheduler_core import Scheduler
    from isthmus.runtime.cores.scheduler_events import HostRecord, compare
    from isthmus.runtime.ids import Member, Replica
    from isthmus.runtime.tape.reading import read

    result = world.run("decoupled-diloco", task=linear, learners=2, steps=40)
    budget = {"learners": 2, "tokens": 2 * 40 * 64, "seed": 0}
    request = prepare("decoupled-diloco", linear, run=budget, run_dir=result.folder.parent / "unused")
    for name, data in result.tapes.items():
        core = Scheduler(request.plans[Replica.parse(name).role], Member(Replica.parse(name), 1))
        records = read(data, HostRecord).records
        assert len(records) > 5
        for record in records:
            compare(record, core.handle(record.event, record.at))
