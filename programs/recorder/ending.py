"""Whether the end of a run is awaited any longer: the one bound that ends every graph.

Decides that, and nothing else. A run is to end once the token budget is spent or a stop was requested; then its bodies
come to an end by themselves, in their own way, and report it: learners are final, fragments are final, the model is
evaluated. Each of these is a sign. Without a new one for a while, nothing is waited for any more, whatever bodies do.

The length of that while was learned from the run: some steps of the slowest learner, some sweeps of the slowest merges.
No run is cut off sooner than `MODEL` where a final model is to come, because a daemon that takes over, a machine that
is lost and a life that begins again after back-offs take that long together, nor than `PLAIN` where none is. Time in
which this host was stopped, or its machine asleep, does not count: the others may have sent signs in it.
"""

from __future__ import annotations

from typing import Final

from isthmus.runtime.clock import Duration, seconds

PLAIN: Final = seconds(10)
MODEL: Final = seconds(90)
EVALUATION: Final = seconds(600)
"""Time limit for the last evaluation, if nothing else is missing and its host lives."""
TIMES: Final = 4
"""The wait, as a multiple of the slowest step, or sweep of merges."""
GAP: Final = seconds(2)
"""Upper limit for the time that counts between two looks, which come several times a second."""


class Ending:
    """The end of one run; `has_model`: its program gives a final model."""

    def __init__(self, *, has_model: bool) -> None:
        self._least = MODEL if has_model else PLAIN
        self._slowest = 0
        self._merged_at: dict[int, int] = {}
        self._signs: object = None
        self._looked_at: int | None = None
        self._waited = 0

    def step_took(self, duration: int) -> None:
        """A step of some learner took `duration` nanoseconds."""
        self._slowest = max(self._slowest, duration)

    def merged(self, fragment: int, now: int) -> None:
        """A fragment was merged; from one such merge to the next is a sweep."""
        self._slowest = max(self._slowest, now - self._merged_at.get(fragment, now))
        self._merged_at[fragment] = now

    def look(self, signs: object, now: int) -> None:
        """Note the `signs` of progress of an end that is due; called repeatedly."""
        if self._looked_at is None or signs != self._signs:
            self._signs, self._waited = signs, 0
        else:
            self._waited += min(now - self._looked_at, GAP)
        self._looked_at = now

    @property
    def limit(self) -> Duration:
        """Time limit for the next sign of progress."""
        return Duration(max(self._least, TIMES * self._slowest))

    def is_late(self, *, is_evaluating: bool = False) -> bool:
        """Whether the time limit was exceeded at the last look."""
        return self._waited >= (max(self.limit, EVALUATION) if is_evaluating else self.limit)
