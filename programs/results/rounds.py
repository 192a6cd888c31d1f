"""The rounds of a run on its timeline: the times of opening, quorum, close and publication, and the answers.

merges.jsonl has the decisions, trace.json the measurements. A round's outer step is the firing that holds the round's
own time, its merge the last firing before that; the answer of a learner is its first fragment-send in the round that no
earlier round took. Where the trace has nothing (it is bounded), the times of merges.jsonl stand alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from isthmus.programs.results.record import MergeRecord, RunRecord
from isthmus.programs.results.timeline import Firing, Timeline, Transfer, slot_of

_CLOCKS_MAX: Final = 0.005
"""Seconds by which the time of a merge may miss the firing that published it."""

_DISTANCE_MAX: Final = 0.05
"""Seconds from a merge to its outer step, and from that to the first of its updates, at most."""


class Journey(NamedTuple):
    """A fragment's way from a learner and back: left, arrived at the shard, and returned (None: not seen)."""

    slot: int
    left: float
    arrived: float
    returned: float | None


class Round(NamedTuple):
    """One round of one fragment, in seconds, on the host of its shard."""

    merge: MergeRecord
    host: str
    opened: float
    quorum_at: float
    closed: float
    published: float
    journeys: tuple[Journey, ...] = ()


def rounds_between(record: RunRecord, begin: float, end: float) -> list[Round]:
    """The rounds that were under way in [begin, end], in the order in which they opened, without journeys."""
    timeline = record.timeline
    first = bisect_left(record.merges, begin - _DISTANCE_MAX, key=lambda merge: merge.time)
    found = []
    for merge in record.merges[first:]:
        if merge.time - merge.duration > end + 10 * _DISTANCE_MAX:
            break
        item = _placed(merge, f"syncer/{merge.fragment % record.shards}", timeline)
        if item.opened <= end and item.published >= begin:
            found.append(item)
    return sorted(found, key=lambda item: item.opened)


def with_journeys(rounds: Sequence[Round], timeline: Timeline, begin: float, end: float) -> list[Round]:
    """The same rounds with the journeys of the fragments of all learners that answered."""
    answers: dict[tuple[str, str], list[Transfer]] = {}
    updates: dict[tuple[str, str], list[Transfer]] = {}
    for transfer in timeline.transfers_between(begin, end):
        if transfer.source_node == "fragment-send":
            answers.setdefault((transfer.source, transfer.target), []).append(transfer)
        elif transfer.source_node == "outer-step" and slot_of(transfer.target) is not None:
            updates.setdefault((transfer.source, transfer.target), []).append(transfer)
    taken: set[Transfer] = set()
    complete = []
    for item in rounds:
        journeys = []
        for slot in sorted({*item.merge.voters, *_refused(item.merge)}):
            learner = f"learner/{slot}"
            sent = _first(answers.get((learner, item.host), []), item.opened, item.closed, taken)
            if sent is None:
                continue
            taken.add(sent)
            back = _first(updates.get((item.host, learner), []), item.closed, item.published + _DISTANCE_MAX, set())
            left = timeline.between(learner, "fragment-send", item.opened, sent.begun)
            journeys.append(
                Journey(slot, left[-1].begun if left else sent.begun, sent.ended, back.ended if back else None)
            )
        complete.append(item._replace(journeys=tuple(journeys)))
    return complete


def _placed(merge: MergeRecord, host: str, timeline: Timeline | None) -> Round:
    closed = published = merge.time
    if timeline is not None:
        outer = _publishing(timeline.firings.get((host, "outer-step"), []), merge.time)
        if outer is not None:
            closed, published = outer.begun, outer.ended
            merging = timeline.between(host, "merge", outer.begun - _DISTANCE_MAX, outer.begun)
            closed = merging[-1].begun if merging else closed
    opened = closed - merge.duration
    return Round(merge, host, opened, min(opened + (merge.quorum_ms or 0.0) / 1e3, closed), closed, published)


def _publishing(firings: Sequence[Firing], time: float) -> Firing | None:
    """The firing during which something was published at `time`, or the nearest if the clocks are off by a little."""
    index = bisect_left(firings, time, key=lambda firing: firing.ended)
    if index < len(firings) and firings[index].begun <= time:
        return firings[index]
    near = min(firings[max(index - 1, 0) : index + 1], key=lambda firing: abs(firing.ended - time), default=None)
    return near if near is not None and abs(near.ended - time) <= _CLOCKS_MAX else None


def _first(transfers: Sequence[Transfer], begin: float, end: float, taken: set[Transfer]) -> Transfer | None:
    """The first transfer that began in [begin, end] and was not taken."""
    return next((item for item in transfers if begin <= item.begun <= end and item not in taken), None)


def _refused(merge: MergeRecord) -> list[int]:
    """The slots whose answers were refused."""
    return [entry[0] for entry in merge.refused if entry and isinstance(entry[0], int)]
