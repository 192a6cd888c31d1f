"""Puts the trace on the time of everything else in the run folder: seconds since the first inner step.

A trace is written on the clock of its process. What the two have in common are the outer steps: merges.jsonl says when
each was published, the trace when its firing ended, on the same clock but for the zero. So the shift between them is
the one under which merges were published where outer steps end. A run without merges is shifted so that its
first inner step begins at 0; that is the rule itself, as long as the trace still has that step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from isthmus.programs.command.report_record import MergeRecord
from isthmus.programs.command.report_trace import Firing, Timeline

_TOLERANCE_MAX: Final = 3e-3
"""Seconds between the publication inside an outer step and the end of its firing: far more than that ever takes."""

_TOLERANCE_SHARE: Final = 0.15
"""The same, as a share of the usual distance of outer steps: where they are dense, chance must not pass for a match."""

_SAMPLES_MAX: Final = 40
_SAMPLES_MIN: Final = 10
_CANDIDATES_MAX: Final = 400
_MATCHES_MIN: Final = 0.8
"""The share of the last merges that have to fall on an outer step."""


def aligned(timeline: Timeline, merges: Sequence[MergeRecord]) -> Timeline:
    """The same timeline, in seconds since the first inner step of the run."""
    ends = sorted(
        firing.ended for (_, node), spans in timeline.firings.items() if node == "outer-step" for firing in spans
    )
    times = [merge.time for merge in merges]
    first = min((spans[0].begun for (_, node), spans in timeline.firings.items() if node == "inner-step"), default=0.0)
    guesses = [0.0, first]
    if ends:
        guesses += [ends[-1] - time for time in reversed(times[-_CANDIDATES_MAX:])]
    for guess in guesses:
        near = _distances(ends, times, guess)
        if near is not None:
            # A guess may come from two merges that were close together, so it is moved to where most of them agree.
            return _shifted(timeline, guess + median(near))
    return _shifted(timeline, first)


def _distances(ends: Sequence[float], times: Sequence[float], shift: float) -> list[float] | None:
    """How far the nearest of `ends` is beyond each of `times`, moved by `shift`; None if too few are near.

    Either side may lack some: the trace its oldest firings, merges.jsonl those that came too fast to be written. So
    the newest merges that lie within the trace are asked for their outer steps.
    """
    if len(ends) < 2 or not times:
        return None
    tolerance = min(_TOLERANCE_MAX, _TOLERANCE_SHARE * median(later - earlier for earlier, later in pairwise(ends)))
    within = [time + shift for time in times if ends[0] - tolerance <= time + shift <= ends[-1] + tolerance]
    samples = within[-_SAMPLES_MAX:]
    if len(samples) < min(_SAMPLES_MIN, len(times), len(ends)):
        return None
    found = [_nearest(ends, sample) - sample for sample in samples]
    near = [distance for distance in found if abs(distance) <= tolerance]
    return near if len(near) >= _MATCHES_MIN * len(samples) else None


def _nearest(ends: Sequence[float], time: float) -> float:
    index = bisect_left(ends, time)
    return min(ends[max(index - 1, 0) : index + 1], key=lambda end: abs(end - time))


def _shifted(timeline: Timeline, shift: float) -> Timeline:
    return Timeline(
        {
            place: [Firing(begun - shift, ended - shift) for begun, ended in spans]
            for place, spans in timeline.firings.items()
        },
        [item._replace(begun=item.begun - shift, ended=item.ended - shift) for item in timeline.transfers],
    )
