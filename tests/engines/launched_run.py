"""A run that was launched on an engine of this machine, by the files of its run folder."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.patience import PATIENCE

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


def median(values: list[float]) -> float:
    return statistics.median(values)
