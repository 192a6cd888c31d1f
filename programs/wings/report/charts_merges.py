"""Every merge of the run: a row per fragment, time to the right, a cell for the stretch of work that a merge combined.

The colour gives the number of learners that contributed. A run with more merges than can be distinguished has cells of
several, with the mean of their contributors, rounded down so that a learner that was left out is visible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from markupsafe import Markup

from isthmus.programs.engine.results.absences import away
from isthmus.programs.engine.results.lines import MergeRecord
from isthmus.programs.engine.results.record import RunRecord
from isthmus.programs.engine.results.words import decimal, seconds
from isthmus.programs.wings.report.charts_drawing import Scale, drawing, rectangle, share_level, text, time_axis

_TOP: Final = 4.0
CELLS_MAX: Final = 1_600
_ROWS_MAX: Final = 256
"""Fragments shown; a chart of more is drawn with these, and notes it."""

_TITLE_LENGTH_MAX: Final = 400
_NAMED_MAX: Final = 8
"""Learners that the description of a merge names one by one."""


def draw_merges(
    record: RunRecord, width: float = 1080, cells_max: int = CELLS_MAX, *, has_titles: bool = True
) -> Markup:
    """The grid of merges, one cell a merge, or one for several if there are more than `cells_max`.

    `has_titles`: whether cells have tooltips.
    """
    rows = merges_by_fragment(record)
    shown = list(rows.items())[:_ROWS_MAX]
    height = 18.0 if len(shown) <= 16 else max(5.0, 320 / len(shown))
    left, right = 76.0, width - 20
    bottom = _TOP + height * max(len(shown), 1)
    x = Scale.over([0.0, record.wall_seconds], left, right)
    of = max((len(merge.voters) for merges in rows.values() for merge in merges), default=1)
    of = max(of, len(record.learners))
    grouped = max(1, -(-sum(map(len, rows.values())) // cells_max))
    parts = [time_axis(x, _TOP, bottom, max(int(width / 130), 3), bottom + 15)]
    for index, (fragment, merges) in enumerate(shown):
        y = _TOP + height * index
        if height >= 11 or index % 4 == 0:
            parts.append(text(left - 8, y + height / 2 + 4, f"fragment {fragment}", "end"))
        cells = _cells(merges, grouped, of, x, has_titles)
        high = height - (2 if height >= 11 else 1)
        parts.extend(
            rectangle(begin, y, wide, high, class_, title, data_merge=key_of(merge.fragment, merge.round))
            for begin, wide, class_, title, merge in cells
        )
        parts.extend(_not_merged(record, fragment % record.shards, x, y, high))
    label = f"{sum(map(len, rows.values()))} merges of {len(rows)} fragments over time, by contributors"
    return drawing(width, bottom + 22, label, *parts)


def _not_merged(record: RunRecord, shard: int, x: Scale, y: float, high: float) -> Iterator[Markup]:
    """A frame over the time in which the shard of a row was away."""
    for absence in record.absences:
        if absence.host == f"syncer/{shard}" and absence.kind == "gone":
            begin, end = x(absence.begun), x(record.wall_seconds if absence.ended is None else absence.ended)
            yield rectangle(begin, y, max(end - begin, 2), high, "absent", away(absence, record.waiting))


def key_of(fragment: int, number: int) -> str:
    """By which a cell names its merge, the last of several."""
    return f"{fragment}-{number}"


def merges_by_fragment(record: RunRecord) -> dict[int, list[MergeRecord]]:
    """The merges of each fragment in order of time; without rounds that only ask for the model: for its
    first version, or for the newest that learners hold.
    """
    rows: dict[int, list[MergeRecord]] = {}
    for merge in record.merges:
        if merge.kind not in ("initial", "recover"):
            rows.setdefault(merge.fragment, []).append(merge)
    return dict(sorted(rows.items()))


def _cells(
    merges: Sequence[MergeRecord], grouped: int, of: int, x: Scale, has_titles: bool
) -> Iterator[tuple[float, float, str, str, MergeRecord]]:
    """(left edge, width, class, title, the merge, or the last) of every cell of a row."""
    begin = x(0.0)
    for index in range(0, len(merges), grouped):
        group = merges[index : index + grouped]
        end = max(x(group[-1].time), begin)
        mean = sum(len(merge.voters) for merge in group) / len(group)
        title = describe(group[0], of) if len(group) == 1 else _describe_group(group, mean, of)
        class_ = f"cell k{share_level(int(mean), of)}"
        yield begin, max(end - begin - 1, 0.8), class_, title if has_titles else "", group[-1]
        begin = end


def describe(merge: MergeRecord, of: int) -> str:
    """The description of one merge: contributors, missing and refused learners, and the reason of its close."""
    kind = "final merge" if merge.kind == "final" else "merge"
    version = "" if merge.version is None else f", version {'.'.join(str(part) for part in merge.version)}"
    lines = [f"fragment {merge.fragment}, round {merge.round}{version}: {kind} at {seconds(merge.time)}"]
    lines.append(f"{len(merge.voters)} of {of} contributed" + (f": {_listed(merge.voters)}" if merge.voters else ""))
    weights = [decimal(weight, 2) for weight in merge.weights if weight is not None]
    if 1 < len(weights) <= _NAMED_MAX:
        lines[-1] += f"; weights {', '.join(weights)}"
    if merge.left_out:
        lines.append("left out: " + _listed(merge.left_out))
    lines += ["refused: " + ", ".join(str(part) for part in entry) for entry in merge.refused[:_NAMED_MAX]]
    lines.append(f"quorum after {_ms(merge.quorum_ms)}, grace {_ms(merge.grace_ms_used)}. {merge.reason}".strip())
    description = "\n".join(lines)
    return description if len(description) <= _TITLE_LENGTH_MAX else description[: _TITLE_LENGTH_MAX - 1] + "…"


def _describe_group(group: Sequence[MergeRecord], mean: float, of: int) -> str:
    first, last = group[0], group[-1]
    description = f"fragment {first.fragment}, {len(group)} merges from {seconds(first.time)} to {seconds(last.time)}: "
    description += f"{decimal(mean, 2)} of {of} contributors on average"
    missed = Counter(slot for merge in group for slot in merge.left_out)
    if missed:
        description += "; left out: " + ", ".join(f"learner {slot} {times}×" for slot, times in missed.most_common(8))
    return description


def _listed(slots: Sequence[int]) -> str:
    """Learners by their slots, the first few of many."""
    named = ", ".join(str(slot) for slot in slots[:_NAMED_MAX])
    return f"learner{'s' if len(slots) > 1 else ''} {named}" + (" and more" if len(slots) > _NAMED_MAX else "")


def _ms(value: float | None) -> str:
    return seconds(value / 1e3 if value is not None else None)
