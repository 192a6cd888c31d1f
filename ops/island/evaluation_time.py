"""The time of evaluations: how long one has taken, and which of them a run that was stopped leaves out.

An evaluation is made in parts, a batch each; between two of them its host looks whether it is still wanted. It always
is while the run goes on. Of a run that a person has stopped only the evaluation of the final model is, and that for
STOPPED_NS: whoever stops a run waits for its model, and an evaluation can be made later (`isthmus evaluate`). One that
cannot come to its end in that time, by what the last batch took, is not begun. A part is never interrupted, so one that
lasts longer is left out by the recorder, which waits a little longer than this (`programs.engine.recorder.node`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Final, TypeVar, final

from isthmus.ops.data.held_out import Extract
from isthmus.ops.exchange.messages import Evaluated, EvaluationKind
from isthmus.ops.island.scores import Parts, evaluated

Found = TypeVar("Found")
STOPPED_NS: Final = 3_000_000_000
"""For the evaluation of the final model of a run that was stopped: of the ten seconds until a stopped command is over
the merges before it and the files after it take the rest."""


def whole(parts: Parts) -> dict[str, float]:
    """The mean scalars of an evaluation that is made to its end."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            scalars: dict[str, float] = end.value
            return scalars


@final
class EvaluationTime:
    """The evaluations of one host, on this extract, by its clock `now`; `stop_requested` and `queued` as in the context
    of a body."""

    def __init__(
        self,
        now: Callable[[], int],
        stop_requested: Callable[[], bool],
        queued: Callable[[], int] = lambda: 0,
        extract: Extract | None = None,
    ) -> None:
        self._now, self._stop_requested, self._queued, self._extract = now, stop_requested, queued, extract
        self._stopped_at: int | None = None
        self._batch_ns: int | None = None
        self._has_made = False

    def made(self, kind: EvaluationKind, parts: Parts, count: int, tokens: int) -> Evaluated | None:
        """The message about the model after `tokens`, which `parts` evaluate in `count` batches.

        Of an evaluation that is left out: None, and of the final model that it was.
        """
        queued = self._queued()
        ended = self.ended(kind, parts, count)
        if ended is not None:
            scalars, took = ended
            waited = self._queued() - queued
            return {**evaluated(kind, scalars, tokens, self._extract), "took": took, "queued": min(waited, took)}
        return Evaluated(kind="final", loss=math.nan, tokens=tokens, left_out=True) if kind == "final" else None

    def ended(self, kind: EvaluationKind, parts: Generator[None, None, Found], count: int) -> tuple[Found, int] | None:
        """What `parts` return, which are in `count` batches, and how long they took; None where they are left out."""
        begun, done = self._now(), 0
        while self._is_wanted(kind, begun, count - done):
            at = self._now()
            try:
                next(parts)
            except StopIteration as end:
                return end.value, self._note_batch(at) - begun
            if done:  # The first yield is before the first batch.
                self._note_batch(at)
            done += 1
        parts.close()
        return None

    def _note_batch(self, begun: int) -> int:
        """Note what a batch took that ends now, unless it is the first of all, before which was compiled; now."""
        now = self._now()
        self._batch_ns, self._has_made = now - begun if self._has_made else None, True
        return now

    def _is_wanted(self, kind: EvaluationKind, begun: int, left: int) -> bool:
        """Whether an evaluation since `begun`, of which so many batches are left, goes on."""
        if not self._stop_requested():
            return True
        now = self._now()
        self._stopped_at = now if self._stopped_at is None else self._stopped_at
        needed = left * (self._batch_ns or 0)
        return kind == "final" and now - max(begun, self._stopped_at) + needed <= STOPPED_NS
