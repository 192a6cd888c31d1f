"""Bodies without a purpose, for tests of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def collecting(*ports: str) -> Callable[[Any], Any]:
    """Let a function collect at these ports, as a class does that names them in `collects`."""

    def collect(body: Any) -> Any:
        body.collects = ports
        return body

    return collect


def source() -> int:
    return 1


@collecting("item")
def through(item: int) -> int:
    return item


@collecting("item")
def sample(item: int | None = None) -> int | None:
    return item


@collecting("left", "right")
def join(left: int, right: int) -> int:
    return left + right


@collecting("item", "hint")
def advise(item: int, hint: int | None = None) -> int:
    return item


@collecting("vote", "opening", "decision")
def merge(vote: int, opening: int, decision: object) -> int:
    return vote


@collecting("item", "hint", "decision")
def decide(item: int, decision: object, hint: int | None = None) -> int:
    return item


class Batches:
    outputs = ("batch",)

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self) -> int:
        return self.seed


class InnerStep:
    outputs = ("parameters", "progress")
    collects = ("update",)

    def __init__(self, emit_every: int) -> None:
        self.emit_every = emit_every

    def __call__(self, batch: int, update: int | None = None) -> int:
        return batch
