"""The patience of the membership core: its options, each with the reason for its default. No option needs to be set.

It decides nothing; deadlines are learned from arrivals (`phi_accrual`), and these options set the confidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from isthmus.runtime.clock import Duration, milliseconds, seconds
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.membership.phi_accrual import quantile

INTERVAL_FIRST: Final = seconds(1)
DEVIATION_FIRST: Final = seconds(2)
"""A new member is suspect after 7.2 s and gone after 15.1 s of silence: it may be importing or compiling."""
DEVIATION_MIN: Final = milliseconds(500)
"""No member is gone before 3.5 s of silence: a busy interpreter or a paused machine is silent for a second or two."""
SILENCE_MAX: Final = seconds(30)
"""A silent member is gone after this, whatever was learned: one long silence must not excuse the next."""
EXCUSED_MAX: Final = seconds(600)
"""The longest excuse for a silence: a process that was stopped and forgotten must not delay a run for ever."""
PROGRESS_DEVIATION_MIN: Final = seconds(2)
"""A host that steps all the time is stuck after at least 14.3 s without a step. A hang lasts for ever, so some seconds
more cost little, and an occasional long firing (a page that was swapped out, a file that is fetched) costs no life."""
FIRING_MAX: Final = seconds(60)
"""A firing that lasts longer, while other nodes step on, hangs: work beside the steps takes a few seconds."""
PROGRESS_DEVIATION_FIRST: Final = seconds(5)
"""The first steps of a host may each compile something: it has at least 35 s for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipOptions:
    """`slots_max`: role -> number of its slots. LocalProtocolError for values out of range.

    `phi_suspect`: 3 is one wrong suspicion in 1,000 intervals, which costs a line in the status. `phi_gone`: a wrong
    removal costs a restart, and real intervals have longer tails than the normal distribution; 8 is customary, 12 is
    recommended for shared machines. `phi_stuck`: the same for steps. `interval_first`, `deviation_first`: the assumed
    rhythm of a new member.
    """

    slots_max: Mapping[str, int]
    phi_suspect: float = 3.0
    phi_gone: float = 12.0
    phi_stuck: float = 12.0
    interval_first: Duration = INTERVAL_FIRST
    deviation_first: Duration = DEVIATION_FIRST
    deviation_min: Duration = DEVIATION_MIN
    silence_max: Duration = SILENCE_MAX
    excused_max: Duration = EXCUSED_MAX
    progress_deviation_first: Duration = PROGRESS_DEVIATION_FIRST
    progress_deviation_min: Duration = PROGRESS_DEVIATION_MIN
    firing_max: Duration = FIRING_MAX
    z_suspect: float = field(init=False)
    z_gone: float = field(init=False)
    z_stuck: float = field(init=False)

    def __post_init__(self) -> None:
        if not 0.5 <= self.phi_suspect <= self.phi_gone <= 300:
            found = f"{self.phi_suspect} and {self.phi_gone}"
            raise _illegal("0.5 <= phi_suspect <= phi_gone <= 300", found)
        if not 0.5 <= self.phi_stuck <= 300:
            raise _illegal("0.5 <= phi_stuck <= 300", str(self.phi_stuck))
        durations = ("interval_first", "deviation_first", "deviation_min", "silence_max", "excused_max")
        for name in (*durations, "progress_deviation_first", "progress_deviation_min", "firing_max"):
            if getattr(self, name) <= 0:
                raise _illegal(f"{name} above 0 ns", str(getattr(self, name)))
        object.__setattr__(self, "z_suspect", quantile(self.phi_suspect))
        object.__setattr__(self, "z_gone", quantile(self.phi_gone))
        object.__setattr__(self, "z_stuck", quantile(self.phi_stuck))


def _illegal(expected: str, found: str) -> LocalProtocolError:
    return LocalProtocolError(f"membership options: expected {expected}, found {found}. Change them.")
