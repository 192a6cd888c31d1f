"""The evaluation of a run's final model, as its recorder awaits it.

Decides since when it alone is awaited, and that it is left out of a run that a person has stopped: its evaluator says
so where it has no time for it (`ops.island.evaluation_time`). That looks between two batches only, and a batch, or a
function of the user's, may last for long: so the recorder waits a little longer than the evaluator's own limit, and
then no more. While nobody has stopped the run it is awaited as everything else is (`node.Ending`).

An evaluation whose figures are still being computed (`ops.island.final_figures`) is held back until they come, for as
long as it says that they may take, and no longer where the run is stopped, or the evaluator's host has ended: then it
is taken as it is, with the reason.
"""

from __future__ import annotations

from typing import Any, Final, final

from isthmus.ops.exchange.messages import Evaluated
from isthmus.ops.island.evaluation_time import STOPPED_NS

SPARE_NS: Final = 1_500_000_000
"""Beyond the evaluator's own limit: a batch of usual length, and the way of its message."""


@final
class LastEvaluation:
    """Looked at at each firing of the recorder."""

    def __init__(self) -> None:
        self.is_left_out = False
        """Whether it does not come, because the run was stopped."""
        self.awaited_since: int | None = None
        """Since when nothing else was missing, while that lasts."""
        self._stopped_at: int | None = None
        self._waited: int | None = None
        self._held: tuple[Evaluated, int] | None = None
        """The evaluation whose figures are awaited, and since when."""

    def hold(self, evaluated: Evaluated, now: int) -> None:
        """Await its figures; of an evaluator that begins anew, for no longer than of the one before."""
        self._held = evaluated, now if self._held is None else self._held[1]

    def come(self) -> None:
        """What was held has come with its figures."""
        self._held = None

    @property
    def figures_awaited(self) -> tuple[int, int] | None:
        """Since when figures are awaited, and for how long at most; None where none are."""
        return None if self._held is None else (self._held[1], self._held[0]["figures_within"])

    def released(self, now: int, *, is_given_up: bool) -> Evaluated | None:
        """The evaluation without its figures, once these are awaited no more."""
        if self._held is None:
            return None
        evaluated, since = self._held
        is_late = now - since >= evaluated["figures_within"]
        if not (self.is_left_out or is_late or is_given_up):
            return None
        self._held = None
        kind: Any = "stopped" if self.is_left_out else "late" if is_late else "ended"
        return {**evaluated, "figures_fault": {"kind": kind, "detail": ""}}

    def leave_out(self) -> None:
        """Its evaluator has left it out."""
        self.is_left_out = True

    def look(self, now: int, *, is_due: bool, has_come: bool, is_stopped: bool) -> None:
        """Note whether it `is_due`, so that nothing else is missing, and whether it is there."""
        if is_stopped and self._stopped_at is None:
            self._stopped_at = now
        if is_due and self.awaited_since is None and self._waited is None:
            self.awaited_since = now
        since = self.awaited_since
        if since is None:
            return
        if self._stopped_at is not None and now - max(since, self._stopped_at) >= STOPPED_NS + SPARE_NS:
            self.is_left_out |= not has_come
        if has_come or self.is_left_out:
            self.awaited_since, self._waited = None, now - since

    def figures(self, now: int, *, is_over: bool, is_evaluated: bool) -> dict[str, Any]:
        """For a status: how many seconds it alone was awaited, None where it never was, and whether it was left out."""
        waited = self._waited
        if is_over and waited is None and self.awaited_since is not None:  # It was given up.
            waited = now - self.awaited_since
        return {
            "evaluated_seconds": None if waited is None else waited / 1e9,
            "evaluation_left_out": self.is_left_out and not is_evaluated,
        }
