"""One member as the membership core knows it: its state, its rhythm, its progress, and its deadlines.

It computes deadlines and words the reasons; what happens when one is over is the core's to decide. Times are
nanoseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member
from isthmus.runtime.patience import MembershipOptions
from isthmus.runtime.presence import Phase, State
from isthmus.runtime.progress import Progress
from isthmus.runtime.suspicion import Rhythm, in_words

NEVER: Final = Instant(0)


@dataclass(slots=True)
class Attendance:
    """A member, heard last at `heard_at`. `rhythm` is that of its heartbeats; `silent_times` and `stuck_times` say how
    many times the usual patience it is given, after lives of its replica that were removed for the same."""

    member: Member
    phase: Phase
    heard_at: Instant
    rhythm: Rhythm
    progress: Progress
    silent_times: int
    stuck_times: int
    state: State = "alive"
    excused_at: Instant = NEVER

    @property
    def is_excused(self) -> bool:
        """Whether its silence is not its own doing."""
        return self.state in ("stopped", "unheard")

    @property
    def is_stepping(self) -> bool:
        """Whether it speaks, and says that it steps."""
        return self.state == "alive" and self.phase == "stepping"

    @property
    def shown(self) -> State:
        """Its state for others: slow is who speaks, and steps slowly."""
        return "slow" if self.is_stepping and self.progress.is_slow else self.state

    def deadline(self, state: State, options: MembershipOptions) -> Instant:
        """When it leaves `state`, if it stays silent."""
        least = options.deviation_min
        if state in ("stopped", "unheard"):
            return Instant(self.excused_at + options.excused_max)
        if state == "suspect":
            patience = math.ceil(self.rhythm.patience(options.z_gone, least) * self.silent_times)
        else:
            patience = math.ceil(self.rhythm.patience(options.z_suspect, least))
        return Instant(self.heard_at + min(patience, options.silence_max))

    def silence(self, now: Instant, options: MembershipOptions) -> str:
        """The sentence about a silence that is too long."""
        silence = now - self.heard_at
        told = f"no heartbeat for {in_words(silence)}"
        if self.is_excused:
            return f"{told}: {self.state} for {in_words(now - self.excused_at)}, which is as long as is allowed"
        usual = self.rhythm.words(silence, options.deviation_min)
        most = f", and {in_words(silence)} is allowed at most" if silence >= options.silence_max else ""
        return f"{told}: {usual}{most}{_times(self.silent_times)}"

    def stuck(
        self, firing: Duration, node: str, usual: float | None, now: Instant, options: MembershipOptions
    ) -> str | None:
        """Why it is stuck, `node` having been in one firing for so long; None if it is not, or nobody can know.

        `usual` is the mean interval of steps in its role, for a member that has made none.
        """
        rhythm, least = self.progress.rhythm, float(options.progress_deviation_min)
        whose = ""
        if rhythm is None:
            if usual is None:
                return None
            least, whose = float(options.progress_deviation_first), " in its role"
            rhythm = Rhythm(usual, least**2)
        stalled = self.progress.stalled(firing, now)
        if stalled < math.ceil(rhythm.patience(options.z_stuck, least) * self.stuck_times):
            return None
        told = f"stuck: no step for {in_words(stalled)}, in one firing of node {node!r}"
        return f"{told}: {rhythm.words(stalled, least)}{whose}{_times(self.stuck_times)}"


def _times(count: int) -> str:
    return f", {count} times the patience" if count > 1 else ""
