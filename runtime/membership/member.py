"""One member as the membership core knows it: its state, its rhythm, its progress, and its deadlines.

It computes deadlines and findings; what happens when one is over is the core's to decide. Times are nanoseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, cast

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member
from isthmus.runtime.membership.messages import Excuse, LongExcuse, Phase, Silence, Stall, State
from isthmus.runtime.membership.options import MembershipOptions
from isthmus.runtime.membership.phi_accrual import Rhythm, phi
from isthmus.runtime.membership.progress import Progress

NEVER: Final = Instant(0)
STEPS_MAX: Final = 50
"""Of a firing beside the steps: it may wait for the device that makes them, for a few."""


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

    def silence(self, now: Instant, options: MembershipOptions) -> Silence:
        """What is found of a silence that is too long."""
        silence, deviation = now - self.heard_at, self.rhythm.deviation(options.deviation_min)
        return Silence(
            silence,
            self.rhythm.mean,
            deviation,
            phi(silence, self.rhythm.mean, deviation),
            self.silent_times,
            silence >= options.silence_max,
        )

    def end_of_patience(self, now: Instant, options: MembershipOptions) -> Silence | LongExcuse:
        """What is found of a silence that lasts as long as is allowed."""
        if self.is_excused:
            return LongExcuse(now - self.heard_at, cast(Excuse, self.state), now - self.excused_at)
        return self.silence(now, options)

    def hung(self, node: str, now: Instant, options: MembershipOptions) -> Stall | None:
        """What is found of a host that steps on while one firing of `node` lasts too long; None if it does not."""
        rhythm, firing = self.progress.rhythm, self.progress.lasting(now)
        if rhythm is None or firing < max(options.firing_max, STEPS_MAX * rhythm.mean) * self.stuck_times:
            return None
        deviation = rhythm.deviation(float(options.progress_deviation_min))
        suspicion = phi(firing, rhythm.mean, deviation)
        return Stall(node, firing, rhythm.mean, deviation, suspicion, patience_times=self.stuck_times)

    def stuck(
        self, firing: Duration, node: str, usual: float | None, now: Instant, options: MembershipOptions
    ) -> Stall | None:
        """What is found of a host that is stuck, `node` having been in one firing for so long; None if it is not, or
        nobody can know.

        `usual` is the mean interval of steps in its role, for a member that has made none.
        """
        rhythm, least = self.progress.rhythm, float(options.progress_deviation_min)
        is_of_role = rhythm is None
        if rhythm is None:
            if usual is None:
                return None
            least = float(options.progress_deviation_first)
            rhythm = Rhythm(usual, least**2)
        stalled = self.progress.stalled(firing, now)
        if stalled < math.ceil(rhythm.patience(options.z_stuck, least) * self.stuck_times):
            return None
        deviation = rhythm.deviation(least)
        suspicion = phi(stalled, rhythm.mean, deviation)
        return Stall(node, stalled, rhythm.mean, deviation, suspicion, is_of_role, self.stuck_times)
