"""The failures in a run, and their effects on the others: absences, and losses.

The reason why the run failed, if it did, stands at the top of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from isthmus.programs.charts.absence import draw_absence
from isthmus.programs.charts.close_ups import close_ups, rate, steps_between, windows
from isthmus.programs.charts.merges import merges_by_fragment
from isthmus.programs.charts.window import Window
from isthmus.programs.report.sections import WIDE, Part
from isthmus.programs.results.absence_words import cause, cost, named, others_meanwhile
from isthmus.programs.results.absences import Absence
from isthmus.programs.results.numbers import decimal, seconds, whole
from isthmus.programs.results.record import RunRecord, as_number
from isthmus.programs.results.remarks import Topic

PICTURES_MAX: Final = 3
_ROWS_MAX: Final = 200
_AGAIN_MIN: Final = 3
"""From this number on, absences of a host for the same reason are one row."""
_HALF: Final = 530.0
_HEADINGS: Final[dict[Topic, str]] = {
    "items": "Items were refused, and went no further:",
    "machines": "Machines came or went, which is no failure:",
    "pace": "Learners were slow, which is no failure:",
    "data": "Data were slower than the steps that they are for, which is no failure:",
    "given up": "Hosts were given up, and the run went on without them:",
    "ledger": "The daemon lost its ledger, which is no failure:",
    "island": "Islands lost processes, and went on with the rest:",
}


class Picture(NamedTuple):
    """The activity around absences: a chart, close-ups, and sentences."""

    begin: float
    chart: Markup
    close: list[tuple[str, Markup]]
    told: list[str]


class Row(NamedTuple):
    """A failure of a host, once or repeatedly."""

    begun: float
    host: str
    happened: str
    then: str
    away: str
    lost: str


def failures(record: RunRecord) -> Part:
    """Pictures of the first absences, and a row for each host and kind of failure."""
    found = windows(record)
    groups = _groups(record.absences)
    values = {
        "remarks": [(heading, told) for topic, heading in _HEADINGS.items() if (told := _remarks(record, topic))],
        "pictures": [_picture(record, window, absences) for window, absences in found[:PICTURES_MAX]],
        "pictures_in_all": len(found),
        "has_legend": any(item.kind == "gone" for item in record.absences) and bool(found),
        "has_merges": bool(merges_by_fragment(record)),
        "rows": [_row(record, group) for group in groups[:_ROWS_MAX]],
        "rows_in_all": len(groups),
    }
    return Part("failures", "Failures", values)


def _remarks(record: RunRecord, topic: Topic) -> list[str]:
    return [f"at {seconds(item.at)} {item.text}" for item in record.remarks if item.topic == topic]


def _picture(record: RunRecord, window: Window, absences: Sequence[Absence]) -> Picture:
    close = [
        (said, draw_absence(record, moment, absences, _HALF))
        for moment, said in close_ups(record, absences)
        if any(steps.traced for steps in steps_between(record, moment))
    ]
    told = [fact for fact in (_meanwhile(record, absence) for absence in absences) if fact]
    return Picture(window.begin, draw_absence(record, window, absences, WIDE), close, told)


def _row(record: RunRecord, group: Sequence[Absence]) -> Row:
    first, absence = group[0], group[-1]
    gone = "the daemon died" if absence.kind == "replaced" else cause(absence)
    meanwhile = "" if absence.kind == "replaced" else others_meanwhile(absence, record.waiting)
    lives = sum(item.lives_lost for item in group)
    if len(group) > 1:
        gone += f"; {max(len(group), lives)} times, the last at {seconds(absence.begun)}"
    elif lives > 1:
        gone += f"; {lives} lives in a row"
    took = [item.seconds for item in group if item.seconds is not None]
    away = "" if absence.kind == "replaced" else seconds(sum(took) if took else None)
    return Row(first.begun, named(absence.host), gone + meanwhile, _then(record, absence), away, _lost(record, absence))


def _meanwhile(record: RunRecord, absence: Absence) -> str:
    """Figures of the learners that were present all the time."""
    end = record.wall_seconds if absence.ended is None else absence.ended
    window = Window(max(absence.begun, 0.0), end)
    there = [
        steps
        for steps in steps_between(record, window)
        if not any(item.kind != "replaced" for item in steps.absences) and len(steps.traced) > 1
    ]
    if not there or end <= window.begin:
        return ""
    slots = [steps.slot for steps in there]
    now = rate(record, slots, *window)
    before = None if _was_anybody_away(record, window) else rate(record, slots, *_before(window))
    count = sum(len(steps.traced) for steps in there)
    pauses = [steps.pause_max for steps in there if steps.pause_max is not None]
    told = f"While {named(absence.host)} was away, {seconds(end - window.begin)}, {_listed(slots)} made "
    told += f"{whole(count)} inner steps"
    if now is not None:
        told += f", {decimal(now, 1)} a second" + (" each" if len(slots) > 1 else "")
        told += f" ({decimal(before, 1)} in as long before)" if before is not None else ""
    merges = [merge for merge in record.merges if merge.kind == "merge" and window.begin <= merge.time < window.end]
    if merges and (absence.role != "syncer" or record.shards > 1):
        mean = sum(len(merge.voters) for merge in merges) / len(merges)
        told += f"; {whole(len(merges))} merges went on, with {decimal(mean, 1)} contributors on average"
    return told + f". The longest pause between two of their steps was {seconds(max(pauses))}."


def _before(window: Window) -> Window:
    return Window(max(0.0, 2 * window.begin - window.end), window.begin)


def _was_anybody_away(record: RunRecord, window: Window) -> bool:
    """Whether a comparison with the time before `window` would be with another accident."""
    begin, end = _before(window)
    return any(
        item.begun < end and (item.ended is None or item.ended > begin) and item.kind != "replaced"
        for item in record.absences
    )


def _groups(absences: Sequence[Absence]) -> list[list[Absence]]:
    """The absences that share a row: all of a host that went again and again for the same reason; else one."""
    found: dict[tuple[str, str, str], list[Absence]] = {}
    for absence in absences:
        found.setdefault((absence.host, absence.kind, cause(absence)), []).append(absence)
    rows: list[list[Absence]] = []
    for group in found.values():
        rows += [group] if len(group) >= _AGAIN_MIN else [[absence] for absence in group]
    return sorted(rows, key=lambda row: row[0].begun)


def _then(record: RunRecord, absence: Absence) -> str:
    if absence.kind == "replaced":
        return "a new one took over; the hosts went on meanwhile"
    if absence.ended is None:
        return "it did not come back" if record.is_placed else ""
    at = seconds(absence.ended)
    if absence.kind == "silent":
        return f"heard again at {at}"
    if absence.role == "syncer":
        return (
            f"merges again at {at} under epoch {absence.life_after}, from the newest fragments that learners held, "
            "with zero momentum"
        )
    does = {"learner": "steps", "evaluator": "evaluates", "recorder": "writes"}.get(absence.role, "is there")
    return f"{does} again at {at}, as life {absence.life_after}"


def _lost(record: RunRecord, absence: Absence) -> str:
    """The loss; of a learner in tokens, which the summary has for all lives of a slot together."""
    if absence.role != "learner" or absence.kind != "gone":
        return cost(absence)
    slot = absence.host.rpartition("/")[2]
    row = next((row for row in record.per_learner if str(row.get("learner")) == slot), {})
    tokens = as_number(row.get("tokens_lost"))
    if tokens is None:
        return cost(absence)
    lives = sum(item.host == absence.host and item.kind == "gone" for item in record.absences)
    of = f" (with all of its {lives} deaths)" if lives > 1 else ""
    # In programs that average gradients, a learner that comes back takes the moments of another.
    moments = "; its optimizer's moments" if record.number("outer_steps") else ""
    return f"{whole(tokens)} tokens{of}{moments}"


def _listed(slots: Sequence[int]) -> str:
    if len(slots) == 1:
        return f"learner {slots[0]}"
    return f"learners {', '.join(map(str, slots[:-1]))} and {slots[-1]}"
