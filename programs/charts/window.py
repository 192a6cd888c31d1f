"""The second or two of a run that the timeline shows.

A window is about thirty inner steps, so that single steps are visible for any step time; fewer where rounds follow one
another so fast that there would be more than ten, but always long enough for two. It lies in the middle of the trace,
or as near to it as there is a window with a round from beginning to end. Nothing is chosen for its looks.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from isthmus.programs.results.record import RunRecord
from isthmus.programs.results.rounds import rounds_between
from isthmus.programs.results.timeline import Timeline, slot_of

_STEPS: Final = 28
_STEPS_MIN: Final = 10
_ROUNDS: Final = 10
_CANDIDATES: Final = 25
_MIDDLE: Final = (0.4, 0.6)
"""Range in the trace where a window may begin, as shares of the time left beside the window."""


class Window(NamedTuple):
    """A part of the run, in seconds."""

    begin: float
    end: float


def choose_window(record: RunRecord) -> Window | None:
    """The window to show; None without a trace of consecutive inner steps."""
    timeline = record.timeline
    extent = _extent(timeline) if timeline is not None else None
    if timeline is None or extent is None:
        return None
    middle = (extent.begin + extent.end) / 2
    length = min(_length(record, timeline, extent), extent.end - extent.begin)
    if length <= 0:
        return None
    room = extent.end - extent.begin - length
    first, last = (extent.begin + share * room for share in _MIDDLE)
    begins = [first + (last - first) * index / (_CANDIDATES - 1) for index in range(_CANDIDATES)]
    begins.sort(key=lambda begin: abs(begin + length / 2 - middle))
    begins = [begin for begin in begins if timeline.steps_between(begin, begin + length)]
    if not begins:
        step = min(timeline.steps_between(*extent), key=lambda step: abs(step.begun - middle))
        begins = [min(max(step.begun - length / 2, extent.begin), extent.begin + room)]
    rounds = rounds_between(record, first, last + length)
    whole = (
        begin for begin in begins if any(begin <= item.opened and item.published <= begin + length for item in rounds)
    )
    begin = next(whole, begins[0])
    return Window(begin, begin + length)


def _length(record: RunRecord, timeline: Timeline, extent: Window) -> float:
    """The length in seconds at which everything is still distinguishable."""
    step = _step_seconds(timeline)
    merges = [merge for merge in record.merges if merge.kind == "merge" and extent.begin <= merge.time <= extent.end]
    if len(merges) < 2:
        return _STEPS * step
    distance = median(later.time - earlier.time for earlier, later in pairwise(merges))
    duration = median(merge.duration for merge in merges)
    return max(min(_STEPS * step, max(_ROUNDS * distance, _STEPS_MIN * step)), 2.5 * duration)


def _extent(timeline: Timeline) -> Window | None:
    """From the first to the last inner step of the trace; firings before 0 only waited for the model."""
    steps = [spans for (host, node), spans in timeline.firings.items() if node == "inner-step" and spans]
    if not steps:
        return None
    extent = Window(max(0.0, min(spans[0].begun for spans in steps)), max(spans[-1].ended for spans in steps))
    return extent if extent.end > extent.begin else None


def _step_seconds(timeline: Timeline) -> float:
    """The usual time from one inner step to the next, among the learners."""
    usual = [
        median(later.begun - earlier.begun for earlier, later in pairwise(spans))
        for (host, node), spans in timeline.firings.items()
        if node == "inner-step" and slot_of(host) is not None and len(spans) > 1
    ]
    return median(usual) if usual else 0.0
