"""What all rows of the table of loops share: a task, its held-out loss, and a script's way through a run, or alone.

The task: four symbols of 12, of which a teacher with fixed weights draws a class of 12. Neither torch nor jax is
imported here, because a loop in jax is to have no torch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

SYMBOLS: Final = 12
CONTEXT: Final = 4
WIDTH: Final = 16
INNER: Final = 48
SAMPLES: Final = 64
"""Of a batch."""
TOKENS: Final = SAMPLES * CONTEXT
"""Of a batch."""
HELD_OUT: Final = 4096
"""Samples of the held-out loss, the same in every row, seed and run."""
AHEAD_MAX: Final = 16
AHEAD_SECONDS: Final = 0.4
"""An island that is so many steps ahead of the other waits for so long between two steps: so each trains about half of
the tokens, however long the other one takes to come back from its kill."""
KILL_FROM: Final = 0.3
KILL_BY: Final = 0.6
"""The island in slot 1 is killed once it has made so much of its half; from the latter on it steps slowly until then.
"""
PACE_SECONDS: Final = 0.002
KILLED: Final = "killed"
"""The file that the killer makes."""


class Batch(NamedTuple):
    """int64[samples, CONTEXT], and int64[samples] of classes."""

    x: Any
    y: Any


class Row(NamedTuple):
    """A row of the table: what its loop is, in the words of the table; and what makes it."""

    title: str
    make: Callable[..., Any]
    group: str = ""
    """Rows of one group are trained side by side, in one process."""


def draw(rng: np.random.Generator, samples: int = SAMPLES) -> Batch:
    """Some samples of the task."""
    teacher = np.random.default_rng(7)
    last, first = teacher.normal(size=(SYMBOLS, SYMBOLS)) * 1.5, teacher.normal(size=(SYMBOLS, SYMBOLS))
    x = rng.integers(SYMBOLS, size=(samples, CONTEXT))
    logits = last[x[:, -1]] + first[x[:, 0]]
    return Batch(x, (logits + rng.gumbel(size=logits.shape)).argmax(1))


def held_out() -> Batch:
    """The samples of the held-out loss."""
    return draw(np.random.default_rng(1), HELD_OUT)


def batches(seed: int) -> Iterator[Batch]:
    """Batches without an end, as NumPy arrays."""
    rng = np.random.default_rng(seed)
    while True:
        yield draw(rng)


class Alone:
    """What an island is to a loop, for the script that trains alone on all of the tokens."""

    slot, slots = 0, 1

    def __init__(self, state: Any, tokens: int, seed: int) -> None:
        self.state, self._tokens, self.seed = state, tokens, seed
        self.position = self._trained = 0

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def progress(self) -> float:
        return min(1.0, self._trained / self._tokens)

    @property
    def is_over(self) -> bool:
        return self._trained >= self._tokens

    def __call__(self, batches: Any) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if self.is_over:
                return

    def keep(self, *kept: Any) -> None:
        pass

    def step(self, stepped: Any = None, loss: Any = None, *, tokens: Any) -> Any:
        self.position += 1
        self._trained += int(tokens)
        return stepped


class Ground:
    """Where loops are trained: in an island of a run, or alone, by so many steps of all islands together."""

    def __init__(self, seed: int, *, steps: int, rows: int, is_alone: bool) -> None:
        self.seed, self.steps, self.is_alone = seed, steps, is_alone
        self.tokens = budget(steps, rows)
        self.island: Any = None
        self._is_first_life = not Path(KILLED).exists()

    def open(self, model: Any, optimizer: Any = None, **keywords: Any) -> Any:
        """The island, or what stands for it."""
        if self.is_alone:
            self.island = Alone(model, self.tokens, self.seed)
        else:
            import isthmus

            self.island = isthmus.island(model, optimizer, **keywords)
        return self.island

    @property
    def data_seed(self) -> int:
        """The seed of the data: another one in every slot and life."""
        return (int(self.island.seed) + int(self.island.position)) % (1 << 62)

    def begins(self) -> None:
        """Say where this life begins."""
        _say("BEGINS", self.island.slot, self.island.position)

    def pace(self) -> None:
        """Step slowly, as long as the other island has made much fewer steps; slot 1 is slow before its kill."""
        if self.is_alone:
            return
        time.sleep(PACE_SECONDS)
        island = self.island
        if island.position % 4 == 1:
            _write(Path(f"place-{island.slot}"), str(island.position))
        other = Path(f"place-{1 - island.slot}")
        if other.exists() and island.position > int(other.read_text()) + AHEAD_MAX:
            time.sleep(AHEAD_SECONDS)  # It does not stop: the other's next life begins once open rounds are over.
        is_victim = island.slot == 1 and self._is_first_life
        if is_victim and island.position > KILL_BY * self.steps / 2 and not island.is_over:
            time.sleep(AHEAD_SECONDS)  # It does not stop: it is killed once some of its work is merged.

    def end(self, losses: dict[str, float]) -> None:
        """Say the held-out losses at the end, by row."""
        _say("END", self.island.slot, {name: float(loss) for name, loss in losses.items()})


def groups_of(rows: dict[str, Row]) -> dict[str, list[str]]:
    """The names of the rows of each group, of which each begins with the first row of all, the plain loop."""
    plain = next(iter(rows))
    groups = dict.fromkeys(each.group for each in rows.values())
    return {group: [name for name, each in rows.items() if name == plain or each.group == group] for group in groups}


def budget(steps: int, rows: int) -> int:
    """The tokens of so many steps of some rows that are trained side by side."""
    return steps * rows * TOKENS


def merge_rules(rules: dict[str, dict[str, str]]) -> dict[str, str]:
    """The rules of rows that are trained side by side, by row."""
    if len(rules) == 1:
        return next(iter(rules.values()))
    return {f"{name}/{pattern}": kind for name, each in rules.items() for pattern, kind in each.items()}


def _say(word: str, *values: Any) -> None:
    print(word, json.dumps(values), flush=True)


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    with suppress(FileNotFoundError):
        part.rename(path)


def main(train: Callable[[Ground, list[str]], None]) -> None:
    """NAMES SEED STEPS [alone]: train the loops of some rows, whose names have commas between them."""
    names, seed, steps, *how = sys.argv[1:]
    rows = names.split(",")
    train(Ground(int(seed), steps=int(steps), rows=len(rows), is_alone="alone" in how), rows)
