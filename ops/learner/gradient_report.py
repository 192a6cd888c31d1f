"""The reports of a data-parallel learner and their times: the Report of every other learner, without fragments.

Decides when a report is due: the first, at every change of phase, and every 100 ms. Counts steps and tokens; knows
nothing of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from isthmus.ops.exchange.messages import Report
from isthmus.ops.learner.inner_step import REPORT_NS, STEP_TIME_DECAY

Phase = Literal["ready", "stepping", "final"]


class Reporter:
    """The counts of one life of a learner. `totals` are [slot, incarnation, tokens] of the lives that it knows."""

    def __init__(self, context: Any, device_kind: str) -> None:
        self._context, self._device_kind = context, device_kind
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation
        self.step = self.tokens = 0
        self._step_time = self._began_at = self._first_at = self._stepping = self._reported_at = 0
        self._phase: Phase | None = None
        self._scalars: list[Mapping[str, float]] = []

    def begins(self) -> None:
        """Record the start of a step."""
        now = self._context.now()
        if self.step == 0:
            self._first_at = now
        else:
            took = now - self._began_at
            average = self._step_time or took
            self._step_time = round(STEP_TIME_DECAY * average + (1 - STEP_TIME_DECAY) * took)
        self._began_at = now

    def trained(self, tokens: int, scalars: Mapping[str, float]) -> None:
        """Record the end of a step; `scalars` are those of its batch."""
        self.step += 1
        self.tokens += tokens
        self._scalars.append(scalars)

    def report(self, phase: Phase) -> list[tuple[str, Report]]:
        """The report that is due now on port `progress`, if any."""
        now = self._context.now()
        if phase == self._phase and now - self._reported_at < REPORT_NS:
            return []
        self._phase, self._reported_at = phase, now
        if self.step and phase == "stepping":
            self._stepping = now - self._first_at
        means = self._means()
        self._context.publish({"phase": phase, "step": self.step, "sick": False})
        traffic = self._context.traffic
        report = Report(
            slot=self._slot,
            incarnation=self._incarnation,
            phase=phase,
            step=self.step,
            tokens=self.tokens,
            stepping=self._stepping,
            step_time=self._step_time,
            loss=means.pop("loss", math.nan),
            metrics=[[name, mean] for name, mean in means.items()],
            delay_steps=0,
            staleness=0,
            sick=False,
            sick_step=0,
            epochs=[],
            accounts=[],
            versions=[],
            totals=[[self._slot, self._incarnation, self.tokens]],
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            waited=traffic.waited.get(self._context.node, 0),
            device_kind=self._device_kind,
            began=None,
        )
        return [("progress", report)]

    def _means(self) -> dict[str, float]:
        """The means of the scalars since the previous call; empty if no step was made."""
        names = self._scalars[0] if self._scalars else ()
        means = {name: sum(each[name] for each in self._scalars) / len(self._scalars) for name in names}
        self._scalars.clear()
        return means
