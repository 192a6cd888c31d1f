"""The progress of a run: tokens of all learners over time, and the gaps in a learner's reports.

Both come from the learners' reports, which come every few steps: between two of them progress is taken as even, across
a gap it is not. A gap is longer than any usual distance between reports, or a new incarnation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from isthmus.programs.results.record import Report

_USUAL_DISTANCES: Final = 10
_RUN_SHARE: Final = 0.01
"""A gap is longer than this share of the run too: shorter ones are too small for a chart."""


class Progress:
    """The tokens that all learners together had trained at an instant."""

    def __init__(self, reports: Sequence[Report]) -> None:
        newest: dict[tuple[int, int], float] = {}
        self._times, self._totals = [0.0], [0.0]
        total = 0.0
        for report in reports:
            life = (report.learner, report.incarnation)
            gained = report.tokens - newest.get(life, 0.0)
            if gained > 0:
                newest[life] = report.tokens
                total += gained
            self._times.append(max(report.time, self._times[-1]))
            self._totals.append(total)

    def at(self, time: float) -> float:
        """Tokens trained by all learners until `time` (seconds)."""
        after = bisect_right(self._times, time)
        if after == 0:
            return 0.0
        if after == len(self._times):
            return self._totals[-1]
        begin, end = self._times[after - 1], self._times[after]
        share = (time - begin) / (end - begin)
        return self._totals[after - 1] + share * (self._totals[after] - self._totals[after - 1])


def unbroken(reports: Sequence[Report], wall_seconds: float) -> list[list[Report]]:
    """One learner's reports, in parts between which it did not step."""
    if not reports:
        return []
    distances = [later.time - earlier.time for earlier, later in pairwise(reports)]
    gap = max(_USUAL_DISTANCES * median(distances), _RUN_SHARE * wall_seconds) if distances else 0.0
    parts = [[reports[0]]]
    for earlier, later in pairwise(reports):
        is_gap = later.time - earlier.time > gap or later.incarnation != earlier.incarnation
        if is_gap:
            parts.append([])
        parts[-1].append(later)
    return parts


def while_stepping(reports: Sequence[Report]) -> list[Report]:
    """The reports of the time in which learners stepped: not while they got ready, and not after the last step."""
    return [report for report in reports if report.phase not in ("ready", "final")]


def without_loss(reports: Sequence[Report]) -> int:
    """The number of reports with steps but no finite loss; that of the newest step may come with the next report."""
    steps: dict[tuple[int, int], float] = {}
    count = 0
    for report in while_stepping(reports):
        life = (report.learner, report.incarnation)
        count += report.loss is None and report.step > steps.get(life, 0.0) + 1
        steps[life] = report.step
    return count


def by_learner(reports: Sequence[Report]) -> dict[int, list[Report]]:
    """The reports of each slot, slots in order."""
    found: dict[int, list[Report]] = {}
    for report in reports:
        found.setdefault(report.learner, []).append(report)
    return dict(sorted(found.items()))
