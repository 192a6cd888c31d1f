"""The bounds on a user's code: for how long it may keep a host, by which setting, and how its end is named in advance.

It decides when a bound is told, and ends what has reached one. Which lives a bound is about, and for how long each has
been kept, its callers say: `user_code` for the time that is the user's own, `watch` for a host that has not begun, is
silent, or makes no step. Those two last are judged by the membership core, whose limits follow from what is usual;
there a setting says the least.

Each bound is named a minute before it is reached, or at half of a shorter one (`Lingers`): a bound that ends hours of
work without a word has to be looked for in our code. It is named again if the host has been on in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from isthmus.runtime.clock import Duration, seconds
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.home_state import RunState, TrackedLife

TOLD_BEFORE: Final = seconds(60)
"""An end is named so long before, or at half of a shorter bound."""

IDLE: Final = "run.loop_idle_seconds"
"""The user's code does nothing."""
AWAY: Final = "run.loop_away_max"
"""The user's code lasts."""
START: Final = "run.first_beat_seconds"
"""A process of a task has not sent a heartbeat yet: it imports the user's module."""
SILENT: Final = "run.silent_seconds"
"""A host is silent, as while a task's code holds the interpreter."""
STUCK: Final = "run.stuck_seconds"
"""A learner makes no step, in one firing."""
END: Final = "run.end_seconds"
"""A host has not ended, in a run that is over."""
GRACE: Final = "--grace"
"""A learner has not left, after a notice."""


class Bound(NamedTuple):
    """A limit by a setting; of 0 there is none."""

    setting: str
    limit: Duration

    @property
    def told_at(self) -> Duration:
        """When it is named."""
        return Duration(max(self.limit // 2, self.limit - TOLD_BEFORE))


def judge(
    run: RunState, life: TrackedLife, bound: Bound, lasted: Duration, end: Callable[[], None] | None = None
) -> None:
    """Name a bound in time, and `end` a life that has reached it; without `end` another judge does that."""
    if not bound.limit or lasted < bound.told_at:
        life.warned.discard(bound.setting)
    elif lasted >= bound.limit and end is not None:
        end()
    elif bound.setting not in life.warned:
        life.warned.add(bound.setting)
        left = Duration(max(0, bound.limit - lasted))
        run.write(life.member, incidents.Lingers(bound.setting, lasted, left))
