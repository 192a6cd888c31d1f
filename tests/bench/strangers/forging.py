"""Decoupled DiLoCo in which the learner of slot 2 is broken in one way, in all its lives: the environment variable
STRANGER names it. It is sound for its first steps.

    STRANGER="flipped signs" isthmus train tests/bench/strangers/forging.py:build --learners 3
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from typing import Any, Final
from unittest import mock

import numpy as np

from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.programs import decoupled
from isthmus.programs.job import Job
from isthmus.runtime.graph.template import Graph

LIAR: Final = 2
STEPS_SOUND: Final = 20
VARIABLE: Final = "STRANGER"
MANY: Final = 10**9

Forgery = Callable[[dict[str, Any]], dict[str, Any]]


def put(**fields: Any) -> Forgery:
    """Other values."""
    return lambda item: {**item, **fields}


def without(name: str) -> Forgery:
    """A field less."""
    return lambda item: {field: value for field, value in item.items() if field != name}


def louder(factor: float) -> Forgery:
    """An answer that is so many times as long, and says so."""
    return lambda item: {
        **item,
        "gradient": item["gradient"] * np.float32(factor),
        "norms": item["norms"] * np.float32(abs(factor)),
    }


def hang(item: dict[str, Any]) -> dict[str, Any]:
    """Nothing, ever."""
    threading.Event().wait()
    return item


def hang_at_the_end(item: dict[str, Any]) -> dict[str, Any]:
    """Nothing, ever, instead of the last answer."""
    return hang(item) if item["kind"] == "final" else item


def fail(item: dict[str, Any]) -> dict[str, Any]:
    """An exception."""
    raise ValueError(f"broken on purpose, at {sorted(item)[0]}")


STRANGERS: Final[dict[str, tuple[str, Forgery]]] = {
    "nothing is wrong": ("progress", lambda item: item),
    "a field is missing": ("progress", without("epochs")),
    "text for a number": ("progress", put(step_time="soon")),
    "NaN for a count": ("progress", put(delay_steps=float("nan"))),
    "tokens that no step has": ("progress", put(tokens=MANY)),
    "totals of others": ("progress", put(totals=[[0, 1, MANY], [1, 1, MANY]])),
    "totals of nobody": ("progress", put(totals=[[9, 1, MANY]])),
    "totals of nobody, to the recorder": ("report", put(totals=[[9, 1, MANY]])),
    "it is at its end, it says": ("progress", put(phase="final")),
    "another's name": ("progress", put(slot=0)),
    "an incarnation of the future": ("progress", put(incarnation=99)),
    "NaN for a loss": ("report", put(loss=float("nan"))),
    "NaN for a time": ("report", put(step_time=float("nan"))),
    "accounts that are too short": ("report", put(accounts=[[1, 2]])),
    "a list for an array": ("answer", lambda item: {**item, "gradient": item["gradient"].tolist()}),
    "an array of another size": ("answer", lambda item: {**item, "gradient": item["gradient"][:-1]}),
    "a base that is none": ("answer", put(base="newest")),
    "NaN in a gradient": ("answer", lambda item: {**item, "gradient": item["gradient"] * np.float32("nan")}),
    "NaN for a norm": ("answer", lambda item: {**item, "norms": item["norms"] * np.float32("nan")}),
    "norms of other values": ("answer", lambda item: {**item, "norms": item["norms"] * np.float32(1e30)}),
    "100 times too long": ("answer", louder(1e2)),
    "10,000 times too long": ("answer", louder(1e4)),
    "1e30 times too long": ("answer", louder(1e30)),
    "flipped signs": ("answer", louder(-1.0)),
    "work that was never done": ("answer", lambda item: {**item, "end": item["end"] + MANY, "begin": MANY}),
    "a body that hangs": ("answer", hang),
    "a body that hangs at the end": ("answer", hang_at_the_end),
    "a body that raises": ("answer", fail),
}
"""Name -> the port whose items are forged, and how."""


class Liar:
    """What a life of the liar does to the items that leave it."""

    def __init__(self, context: Any) -> None:
        self._is_lying = context.member.replica.slot == LIAR
        self._port, self._forge = STRANGERS[os.environ[VARIABLE]]

    def forged(self, emitted: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """What is emitted instead."""
        return [(port, self._forged(port, item)) for port, item in emitted]

    def _forged(self, port: str, item: Any) -> Any:
        is_due = item.get("steps", item.get("step", 0)) >= STEPS_SOUND or item.get("begin", 0) > 0
        return self._forge(item) if self._is_lying and port == self._port and is_due else item


class ForgingStep(InnerStep):
    """inner-step, whose progress and reports are forged."""

    def open(self, context: Any) -> None:
        self._liar = Liar(context)
        super().open(context)

    def __call__(
        self, batch: Any, update: Any = None, pull: Any = None, control: Any = None
    ) -> Generator[list[tuple[str, Any]], None, list[tuple[str, Any]]]:
        """One boundary."""
        return self._liar.forged((yield from super().__call__(batch, update, pull, control)))


class ForgingSend(FragmentSend):
    """fragment-send, whose answers are forged."""

    def open(self, context: Any) -> None:
        """Learn who this is."""
        self._liar = Liar(context)

    def __call__(self, fragment: Any) -> list[tuple[str, Any]]:
        """The answers."""
        return self._liar.forged([answer for answers in super().__call__(fragment) for answer in answers])


def build(job: Job, *, outer_lr: float = 0.7, outer_momentum: float = 0.0, fragments: int = 2) -> Graph:
    """The graph of decoupled-diloco, with these bodies."""
    with mock.patch.multiple(decoupled, InnerStep=ForgingStep, FragmentSend=ForgingSend):
        return decoupled.build(job, outer_lr=outer_lr, outer_momentum=outer_momentum, fragments=fragments)
