"""What went wrong in a run, and what that did to the others: why it failed, who was away, what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from isthmus.programs.command.absence_words import cause, cost, named
from isthmus.programs.command.absences import Absence
from isthmus.programs.command.chart_absence import draw_absence
from isthmus.programs.command.chart_merges import merges_by_fragment
from isthmus.programs.command.chart_window import Window
from isthmus.programs.command.remarks import Topic
from isthmus.programs.command.report_lives import close_ups, rate, steps_between, windows
from isthmus.programs.command.report_markup import Content, Markup, element, joined
from isthmus.programs.command.report_record import RunRecord, as_number
from isthmus.programs.command.report_sections import legend, note, section
from isthmus.programs.numbers import decimal, seconds, whole

PICTURES_MAX: Final = 3
_ROWS_MAX: Final = 200
_WIDE: Final = 1080.0
_HALF: Final = 530.0
_HEADINGS: Final[dict[Topic, str]] = {
    "machines": "Machines came or went, which is no failure:",
    "pace": "Learners were slow, which is no failure:",
    "given up": "Hosts were given up, and the run went on without them:",
    "ledger": "The daemon lost its ledger, which is no failure:",
}


def failures_section(record: RunRecord) -> Markup:
    """Why the run failed, if it did; a picture of the first absences, and a row for each."""
    title = "Failures"
    parts: list[Content] = []
    error = record.text("error")
    if error:
        parts += [note("The run failed:"), element("pre", error)]
    for topic, heading in _HEADINGS.items():
        told = [element("li", f"at {seconds(item.at)} {item.text}") for item in record.remarks if item.topic == topic]
        if told:
            parts += [note(heading), element("ul", *told, class_="note told")]
    if not record.absences:
        if record.is_apart:
            parts.append(note("No host ended before its time, and none was silent."))
        elif not error:
            parts.append(note("All hosts shared one process: one that dies ends the run, and none did."))
        return section("failures", title, *parts)
    found = windows(record)
    for window, absences in found[:PICTURES_MAX]:
        parts += _picture(record, window, absences)
    if len(found) > PICTURES_MAX:
        parts.append(note(f"The first {PICTURES_MAX} of {len(found)} such times are drawn."))
    if any(item.kind == "gone" for item in record.absences) and found:
        parts.append(_legend(has_merges=bool(merges_by_fragment(record))))
    parts.append(element("div", _table(record), class_="scroll"))
    if not record.is_placed:
        parts.append(
            note("There is no summary, so times count from the submission of the run, and returns are not known.")
        )
    return section("failures", title, *parts)


def _picture(record: RunRecord, window: Window, absences: Sequence[Absence]) -> list[Content]:
    chart = element(
        "div",
        draw_absence(record, window, absences, _WIDE),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=f"absences from {window.begin:.0f} s",
    )
    close = [
        element("div", element("p", f"Close up: {said}", class_="note"), draw_absence(record, moment, absences, _HALF))
        for moment, said in close_ups(record, absences)
    ]
    if close:
        chart = joined([chart, element("div", *close, class_="pair")])
    told = [fact for fact in (_meanwhile(record, absence) for absence in absences) if fact]
    return [element("figure", chart), element("ul", *(element("li", fact) for fact in told), class_="note told")]


def _meanwhile(record: RunRecord, absence: Absence) -> str:
    """What the learners did that were there all the time, in numbers."""
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


def _table(record: RunRecord) -> Markup:
    names = ("at", "host", "what happened", "and then", "away", "lost")
    head = element("tr", *(element("th", name, scope="col", class_=_side(name)) for name in names))
    rows = [_row(record, absence) for absence in record.absences[:_ROWS_MAX]]
    table = element("table", element("thead", head), element("tbody", *rows))
    if len(record.absences) <= _ROWS_MAX:
        return table
    return element("div", table, note(f"The first {_ROWS_MAX} of {len(record.absences)} are listed."))


def _side(name: str) -> str | None:
    return None if name in ("at", "away") else "left"


def _row(record: RunRecord, absence: Absence) -> Markup:
    gone = "the daemon died" if absence.kind == "replaced" else cause(absence)
    if absence.lives_lost > 1:
        gone += f"; {absence.lives_lost} lives in a row"
    return element(
        "tr",
        element("td", seconds(absence.begun) if absence.begun >= 0 else "before the first step"),
        element("td", named(absence.host), class_="left"),
        element("td", gone, class_="left wrap"),
        element("td", _then(record, absence), class_="left wrap"),
        element("td", seconds(absence.seconds) if absence.kind != "replaced" else ""),
        element("td", _lost(record, absence), class_="left wrap"),
    )


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
    """What was lost; of a learner in tokens, which the summary has for all lives of a slot together."""
    if absence.role != "learner" or absence.kind != "gone":
        return cost(absence)
    slot = absence.host.rpartition("/")[2]
    row = next((row for row in record.per_learner if str(row.get("learner")) == slot), {})
    tokens = as_number(row.get("tokens_lost"))
    if tokens is None:
        return cost(absence)
    lives = sum(item.host == absence.host and item.kind == "gone" for item in record.absences)
    of = f" (with all of its {lives} deaths)" if lives > 1 else ""
    # Where gradients are averaged, whoever comes back takes the moments of another.
    moments = "; its optimizer's moments" if record.number("outer_steps") else ""
    return f"{whole(tokens)} tokens{of}{moments}"


def _listed(slots: Sequence[int]) -> str:
    if len(slots) == 1:
        return f"learner {slots[0]}"
    return f"learners {', '.join(map(str, slots[:-1]))} and {slots[-1]}"


def _legend(*, has_merges: bool) -> Markup:
    entries = [
        ("var(--c0)", "inner steps, traced"),
        (
            "repeating-linear-gradient(135deg,var(--c0) 0 1.5px,var(--panel) 1.5px 4px)",
            "a life that was killed: drawn from its reports, because it left no trace",
        ),
        *([("var(--k4)", "merge, in the colour of its contributors")] if has_merges else []),
        ("var(--ink)", "evaluation"),
    ]
    said = "A cross and an empty frame: the host was away. Gaps narrower than half a pixel are closed."
    return element("div", legend(entries), note(said))
