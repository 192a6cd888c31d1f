"""One member as the membership core knows it: its state, its rhythm, its progress, and its deadlines.

It computes deadlines and findings; the core decides what follows when a deadline passes. Times are nanoseconds.
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
"""Steps that a firing of another node may last: it may wait for the device that computes them, for a few."""


@dataclass(slots=True)
class Attendance:
    """A member, with its last sign of life at `heard_at`; `rhythm` is that of its heartbeats.

    `silent_times` and `stuck_times` multiply its patience, after incarnations of its replica that were removed for the
    same cause.
    """

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
        """Whether its silence has a known outside cause."""
        return self.state in ("stopped", "unheard")

    @property
    def is_stepping(self) -> bool:
        """Whether it is alive and reports that it steps."""
        return self.state == "alive" and self.phase == "stepping"

    @property
    def shown(self) -> State:
        """Its state as others see it: `slow` for one that is alive and steps slowly."""
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
        """The finding for a silence that is too long."""
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
        """The finding for a silence that has lasted as long as allowed."""
        if self.is_excused:
            return LongExcuse(now - self.heard_at, cast(Excuse, self.state), now - self.excused_at)
        return self.silence(now, options)

    def hung(self, node: str, now: Instant, options: MembershipOptions) -> Stall | None:
        """The finding for a host that steps on while one firing of `node` lasts too long; None if it does not."""
        rhythm, firing = self.progress.rhythm, self.progress.lasting(now)
        if rhythm is None or firing < max(options.firing_max, STEPS_MAX * rhythm.mean) * self.stuck_times:
            return None
        deviation = rhythm.deviation(float(options.progress_deviation_min))
        suspicion = phi(firing, rhythm.mean, deviation)
        return Stall(node, firing, rhythm.mean, deviation, suspicion, patience_times=self.stuck_times)

    def stuck(
        self, firing: Duration, node: str, usual: float | None, now: Instant, options: MembershipOptions
    ) -> Stall | None:
        """The finding for a host that is stuck in a firing of `node` that lasts `firing`; None if it is not.

        `usual` is the mean interval of steps in its role, for a member that has made none; without it such a member
        cannot be judged: None.
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
