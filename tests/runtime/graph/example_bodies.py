"""Bodies without a purpose, for tests of graphs."""

from __future__ import annotations


def source() -> int:
    return 1


def through(item: int) -> int:
    return item


def sample(item: int | None = None) -> int | None:
    return item


def join(left: int, right: int) -> int:
    return left + right


def advise(item: int, hint: int | None = None) -> int:
    return item


def merge(vote: int, opening: int, decision: object) -> int:
    return vote


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

    def __init__(self, emit_every: int) -> None:
        self.emit_every = emit_every

    def __call__(self, batch: int, update: int | None = None) -> int:
        return batch
