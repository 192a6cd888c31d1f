"""The steps of a learner on a made device, boundary by boundary, as inner-step and fragment-send make them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from isthmus.ops.data.batches import At
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.learner.fragment_exchange import FragmentExchange
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.run_terms import RunTerms
from tests.made_device import MadeDevice
from tests.ops.bodies import Context, pull, update

INTERVAL: Final = 24
OVERLAP: Final = 2
"""Steps between an answer and the adoption of what it has become."""


class MadeContext(Context):
    """A context whose time is that of the made device's host."""

    def __init__(self, made: MadeDevice) -> None:
        super().__init__()
        self._made = made
        self.connected = frozenset({"fragment", "progress", "report"})

    def now(self) -> int:
        return round(self._made.host.now * 1e9) + 1


class MadeSteps:
    """A learner of `fragments`, which begins with what its task makes; `make(number)` makes a step, from 0."""

    def __init__(self, task: Any, fragments: Sequence[Fragment], made: MadeDevice, *, push: str = "float32") -> None:
        self._task, self._made = task, made
        self.fragments = tuple(fragments)
        self.context = MadeContext(made)
        exchange: Any = FragmentExchange(push=push)  # type: ignore[arg-type]
        self.body = InnerStep(task, fragments=self.fragments, exchange=exchange, run=RunTerms(tokens=1 << 40))
        self.body.open(self.context)
        self.learner: Any = self.body._learner
        self._send = FragmentSend(self.fragments, push=push)  # type: ignore[arg-type]
        self._send.open(self.context)
        self._rng = np.random.default_rng(0)
        self._counts = [0] * len(fragments)
        self._every = INTERVAL // len(fragments)
        self._asked: list[tuple[int, int]] = []
        self.answers: list[Any] = []
        self.reports: list[Any] = []
        self.learner.begin()
        first = {("syncer/0", p): update(each, 0, np.asarray(self.learner.extract(p))) for p, each in self._numbered()}
        self._fire(update=first)

    def _numbered(self) -> Any:
        return enumerate(self.fragments)

    def is_boundary(self, number: int) -> bool:
        """Whether anything is exchanged before a step."""
        return number % self._every in (0, OVERLAP)

    def make(self, number: int) -> None:
        """One boundary, with what is due there, and the step behind it."""
        inputs = dict[str, Any]()
        due = [p for p, step in self._asked if step + OVERLAP == number]
        if due:
            inputs["update"] = {("syncer/0", p): self._next_version(p) for p in due}
        if number % self._every == 0:
            p = number // self._every % len(self.fragments)
            self._asked = [*self._asked[-1:], (p, number)]
            inputs["pull"] = {("syncer/0", p): pull(p, number + 1)}
        self._made.works(self._made.table.boundary)
        self._fire(batch=self._task.batch(At(0, 0, number)), **inputs)

    def _next_version(self, p: int) -> Any:
        self._counts[p] += 1
        values = self._rng.standard_normal(self.fragments[p].size).astype(np.float32) * np.float32(0.02)
        return update(self.fragments[p], self._counts[p], values)

    def _fire(self, **inputs: Any) -> None:
        firing = self.body(**{"batch": None, **inputs})
        emitted = list[tuple[str, Any]]()
        while True:
            try:
                emitted += self._sent(next(firing) or [])
            except StopIteration as end:
                emitted += self._sent(end.value)
                break
        self.reports += [item for port, item in emitted if port == "report"]

    def _sent(self, emitted: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """What inner-step emits; captures become answers, in the thread of fragment-send."""
        captures = [item for port, item in emitted if port == "fragment"]
        if captures:
            with self._made.as_host("fragment-send"):
                for answers in self._send(dict(enumerate(captures))):
                    self.answers += [answer for _, answer in answers]
        return emitted
