"""Decoupled DiLoCo in which the learner of slot 2 sends what is wrong, in every life of it something else.

isthmus train tests/programs/engine/run/forging_program.py:build --tokens 100000
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final
from unittest import mock

from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.programs import decoupled, shard_keeping
from isthmus.programs.job import Job
from isthmus.runtime.graph.template import Graph

LIAR: Final = 2
STEPS_HONEST: Final = 6

Forgery = Callable[[dict[str, Any]], dict[str, Any]]
FORGERIES: Final[dict[str, list[Forgery]]] = {
    "progress": [
        lambda item: {name: value for name, value in item.items() if name != "epochs"},
        lambda item: {**item, "step_time": "soon"},
        lambda item: {**item, "incarnation": item["incarnation"] + 1},
        lambda item: {**item, "tokens": 10**9},
        lambda item: item,
        lambda item: {**item, "slot": 0},
    ],
    "answer": [
        *[lambda item: item] * 4,
        lambda item: {**item, "norms": [1.0, float("nan")]},
        lambda item: item,
    ],
}


class Liar:
    """What one life of the liar does to the items on a port."""

    _life = 0

    def learn(self, context: Any) -> None:
        """Learn which life this is, if it is the liar's at all."""
        member = context.member
        self._life = member.incarnation if member.replica.slot == LIAR else 0

    def forged(self, emitted: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """What is emitted instead."""
        return [(port, self._forged(port, item)) for port, item in emitted]

    def _forged(self, port: str, item: Any) -> Any:
        if not self._life or port not in FORGERIES or item.get("step", STEPS_HONEST) < STEPS_HONEST:
            return item
        forgeries = FORGERIES[port]
        return forgeries[min(self._life, len(forgeries)) - 1](item)


class ForgingStep(InnerStep):
    """inner-step, whose progress is forged."""

    def open(self, context: Any) -> None:
        """Learn which life this is."""
        self.liar = Liar()
        self.liar.learn(context)
        super().open(context)

    def __call__(
        self,
        batch: Any,
        update: Any = None,
        pull: Any = None,
        control: Any = None,
        cursor: Any = None,
        loan: Any = None,
    ) -> Generator[list[tuple[str, Any]], None, list[tuple[str, Any]]]:
        """One boundary."""
        return self.liar.forged((yield from super().__call__(batch, update, pull, control, cursor, loan)))


class ForgingSend(FragmentSend):
    """fragment-send, whose answers are forged."""

    def open(self, context: Any) -> None:
        """Learn which life this is."""
        self.liar = Liar()
        self.liar.learn(context)
        super().open(context)

    def __call__(self, fragment: Any) -> list[tuple[str, Any]]:
        """The answers."""
        return self.liar.forged([answer for answers in super().__call__(fragment) for answer in answers])


def build(job: Job) -> Graph:
    """The graph of decoupled-diloco, with these bodies."""
    with (
        mock.patch.object(decoupled, "InnerStep", ForgingStep),
        mock.patch.object(shard_keeping, "FragmentSend", ForgingSend),
    ):
        return decoupled.build(job)
