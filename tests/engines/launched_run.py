"""Launches on an engine of this machine, and their runs, by the files of the run folder."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.patience import PATIENCE
from tests.programs.engine.run.agreement import disagreements

ISTHMUS: Final = Path(sys.executable).with_name("isthmus")
AFTER_END_SECONDS: Final = 10.0
"""Until an engine has nothing of a launch any more."""
RATIO_MAX: Final = 1.5
"""Of the time to the first merge of two islands: launched, over the same commands by hand."""
STEPS_RATIO_MIN: Final = 0.95
"""Of an island's steps a second: while another host is away, over before."""
REPEATS: Final = 3

PAUSE: Final = threading.Event()
"""Never set: to look again, after a moment, whether something has come about."""
TASK: Final = """
import time
import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jax.random.normal(key, (32, 1)), "b": jnp.zeros(1)}
def loss(params, batch): return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)
def batch(at):
    time.sleep(0.2)
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}

task = Task(init, loss, batch, tokens_per_batch=64, optimizer=optax.adamw(1e-3))
"""
"""A step of 200 ms that takes next to no CPU: a learner that never waits makes 5 steps a second, also while others
start and compile on the same cores."""
SCRIPT: Final = """
import sys, time
import jax.numpy as jnp, numpy as np
import isthmus

state = {"w": jnp.zeros(64)}
with isthmus.island(state, evaluate=lambda state: float(jnp.mean(state["w"] ** 2))) as island:
    state, rng = island.state, np.random.default_rng(island.seed)
    for _ in island(iter(int, 1)):
        time.sleep(float(sys.argv[1]))
        w = state["w"] + 0.01 * (rng.normal(size=64).astype(np.float32) - state["w"])
        state = island.step({"w": w}, loss=float(jnp.mean(w**2)), tokens=64)
print("BEHIND", island.slot, flush=True)
"""
"""A loop of the user's own with such a step; its length is its argument."""
TOKENS_PER_SECOND: Final = 64 * 5
"""Of each learner, at most: so long a run lasts at least."""
FOREVER: Final = 1_000_000_000


def wait_for(what: Callable[[], Any], why: Callable[[], str] = str, seconds_max: float = PATIENCE) -> Any:
    """The first true result of `what`; AssertionError, with `why`, if time is over."""
    until = time.monotonic() + seconds_max
    while not (found := what()):
        assert time.monotonic() < until, f"it did not come about: {why()}"
        PAUSE.wait(0.05)
    return found


class LaunchedRun:
    """A run in a folder, which may not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of a file of the run."""
        with suppress(FileNotFoundError):
            text = (self.folder / f"{name}.jsonl").read_text()
            return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return []

    def summary(self) -> dict[str, Any]:
        """The summary; empty where there is none."""
        with suppress(FileNotFoundError):
            summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
            return summary
        return {}

    def merges_of(self, *slots: int) -> set[tuple[Any, ...]]:
        """The merges in which each of these slots has a vote."""
        merges = self.lines("merges")
        return {(line["epoch"], line["fragment"], line["time"]) for line in merges if set(slots) <= set(line["voters"])}

    def wait_for_merges(self, *slots: int, why: Callable[[], str] = str, seconds_max: float = PATIENCE) -> None:
        """Wait for a merge, newer than those of now, in which each of these slots has a vote."""
        before = self.merges_of(*slots)
        wait_for(lambda: self.merges_of(*slots) - before, why, seconds_max)

    def now(self) -> float:
        """The run's own time of the last report."""
        return max((float(line["time"]) for line in self.lines("metrics")), default=0.0)

    def steps_per_second(self, slot: int, since: float, until: float) -> float:
        """The median rate of a learner's steps between its reports of that time."""
        rows = [row for row in self.lines("metrics") if row["learner"] == slot and since <= row["time"] <= until]
        assert len(rows) > 1, (slot, since, until)
        return (rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["time"] - rows[0]["time"])


class Launch(ABC):
    """A launch of a paced task on an engine, in a folder of its own; `run` is its run."""

    engine: str
    run: LaunchedRun

    def __init__(self, folder: Path, name: str, tokens: int, more: str) -> None:
        self.here, self.name = folder, name.lower().replace("_", "-")[:40].rstrip("-")
        self.file, self.folder = f"{self.name}.toml", folder / "launches" / self.name
        folder.mkdir(exist_ok=True)
        (folder / "paced.py").write_text(TASK)
        (folder / self.file).write_text(f'[run]\ntask = "paced.py:task"\ntokens = {tokens}\n{more}')

    def be_a_script(self, tokens: int) -> None:
        """Have the file of the launch name a script in place of the task."""
        (self.here / "train.py").write_text(SCRIPT)
        text = (self.here / self.file).read_text().partition("tokens = ")[2].partition("\n")[2]
        loop = '[loop]\nscript = "train.py"\narguments = ["0.2"]\n'
        (self.here / self.file).write_text(f"[run]\ntokens = {tokens}\n{loop}{text}")

    @abstractmethod
    def type(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Type `isthmus launch` with words on the cluster; AssertionError if it fails, unless `check` is False."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Whether the engine has nothing of any launch, and no process is left."""

    @abstractmethod
    def story(self) -> str:
        """The ends of its logs, and what the engine has of it."""

    def begin(self, *more: str, islands: int = 2) -> None:
        """Launch it."""
        self.type(self.engine, self.file, "--islands", str(islands), *more)

    def refuse(self, found: str, *words: str) -> None:
        """Type what is to be refused, with a message that has `found` in it."""
        refused = self.type(*words, check=False)
        assert (refused.returncode, found in refused.stderr) == (2, True), refused.stderr

    def members(self) -> dict[str, dict[str, str]]:
        """What is not over, by name."""
        return {each["name"]: each for each in json.loads(self.type("status", "--json").stdout)["members"]}

    def set_aside(self) -> None:
        """End it; nothing is left then."""
        self.type("down")
        self.wait_for_nothing()

    def wait_for_nothing(self, seconds: float = AFTER_END_SECONDS) -> None:
        """Nothing of it is left after so long."""
        wait_for(self.is_gone, self.story, seconds)

    def slots(self) -> dict[str, int]:
        """The slot of each machine that has joined."""
        return {each["machine"]: int(each["host"][-1]) for each in self.run.lines("events") if each["kind"] == "joined"}

    def wait_for_done(self) -> dict[str, Any]:
        """The summary, once it is done, its books agree, and nothing is left."""
        summary: dict[str, Any] = wait_for(
            lambda: self.run.summary().get("outcome") != "interrupted" and self.run.summary(), self.story, 2 * PATIENCE
        )
        self.wait_for_nothing()
        assert summary["outcome"] == "done", summary
        assert disagreements(self.run.folder) == []
        return summary

    def check_steps(self, rates: tuple[float, ...]) -> None:
        """AssertionError if an island made fewer steps a second at any time than at first."""
        print(f"steps a second before, island away, home away: {', '.join(f'{each:.2f}' for each in rates)}")
        assert min(rates[1:]) / rates[0] >= STEPS_RATIO_MIN, rates

    def check_losses(self) -> None:
        """AssertionError if the losses of evaluation do not go on falling."""
        losses = [line["eval_loss"] for line in self.run.lines("evaluations")]
        assert losses[-1] < losses[len(losses) // 2] < losses[0], losses


def compare_with_hands(launched: Callable[[int], float], by_hand: Callable[[int], float]) -> None:
    """AssertionError if launches take longer than the same commands by hand: medians, one after the other."""
    pairs = [(launched(number), by_hand(number)) for number in range(REPEATS)]
    print(json.dumps({"launched, by hand": pairs}))
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    assert medians[0] / medians[1] <= RATIO_MAX, pairs


def hands(commands: list[list[str]], run: LaunchedRun, folder: Path, variables: dict[str, str]) -> None:
    """Have commands go on in a folder until their run has a merge of two islands."""
    log = folder / "log"
    with log.open("wb") as file:
        processes = [subprocess.Popen(words, cwd=folder, env=variables, stdout=file, stderr=file) for words in commands]
    try:
        wait_for(lambda: run.merges_of(0, 1), log.read_text)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(PATIENCE)
