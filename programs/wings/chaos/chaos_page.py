"""The result of `isthmus chaos`: its tables, and its page, one file that loads nothing.

Its pictures: what programs kept; and of one run, on one axis of time, the steps of all learners, what was done to which
process, and the global loss.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from markupsafe import Markup

from isthmus.programs.engine.results.lines import LOSS, EvaluationLine
from isthmus.programs.engine.results.record import RunRecord
from isthmus.programs.engine.results.words import decimal, percent, seconds, whole
from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
from isthmus.programs.wings.chaos.chaos_trial import Recovery, TrialFigures, Tried, as_data, headline, paces
from isthmus.programs.wings.report.charts_absence import GUTTER, draw_absence
from isthmus.programs.wings.report.charts_drawing import (
    Scale,
    drawing,
    element,
    learner_class,
    line,
    rectangle,
    text,
    titled,
)
from isthmus.programs.wings.report.charts_lines import Chart, evaluated
from isthmus.programs.wings.report.charts_timeline import TimeWindow
from isthmus.programs.wings.report.page import REPORT, document, write_sheet
from isthmus.runtime.system.files import write_bytes

_WIDTH: Final = 1080.0
_ROW: Final = 20.0
_BAR: Final = 26.0
_LOSS: Final = 130.0
_NAME: Final = 190.0
"""Left of the bars."""
_VERBS: Final = {
    "kill": "killed",
    "pause": "stopped",
    "slow": "slowed",
    "mute": "cut off",
    "clog": "late",
    "lose": "losing segments",
    "throttle": "throttled",
}


def kept(tried: Sequence[Tried]) -> Markup:
    """A bar for each program: the goodput that it kept, of its own undisturbed one."""
    x, parts = Scale(0.0, 1.0, _NAME, _WIDTH - 60), list[Markup]()
    for row, each in enumerate(tried):
        y, ratio = 6 + row * (_BAR + 8), each.ratio
        parts.append(text(0, y + 18, each.order.program, "name"))
        parts.append(rectangle(x.start, y, x.stop - x.start, _BAR, "band"))
        if ratio is not None:
            label_text = f"{each.order.program} kept {percent(ratio)} of its undisturbed goodput"
            parts.append(
                rectangle(x.start, y, x(min(ratio, 1.0)) - x.start, _BAR, f"chip {learner_class(row)}", label_text)
            )
            parts.append(text(min(x(ratio), x.stop) + 8, y + 18, percent(ratio), "value"))
    label = "Goodput under the plan, as a share of the program's own undisturbed goodput"
    return drawing(_WIDTH, 6 + len(tried) * (_BAR + 8), label, *parts)


def whole_run(struck: TrialFigures, calm: RunRecord) -> Markup:
    """Steps, faults and loss, one below the other on one axis of time."""
    parts, y = list[Markup](), 0.0
    for each in _strips(struck, calm):
        height = float(each.partition('"')[2].partition('"')[0].rpartition(" ")[2])
        parts.append(
            Markup('<svg y="{}" width="{}" height="{}" ').format(y, _WIDTH, height) + Markup(each[len("<svg ") :])
        )
        y += height
    return drawing(_WIDTH, y, "Steps of all learners, what was done to which process, and the global loss", *parts)


def _strips(struck: TrialFigures, calm: RunRecord) -> Iterator[Markup]:
    """Each as wide as all, with the seconds at the same places."""
    record = struck.record
    window = TimeWindow(0.0, max(record.wall_seconds, 1e-3))
    happened = [each for each in struck.recoveries if each.strike.proof]
    marks = [each.strike.begun - struck.zero for each in happened]
    yield draw_absence(record, window, record.absences, _WIDTH, marks)
    x = Scale(window.begin, window.end, GUTTER, _WIDTH - 2)
    if happened:
        yield _faults(happened, struck.zero, x, marks)
    if any(_evaluated(each) for each in (record, calm)):
        yield _loss(record, calm, x, marks)


def _faults(recoveries: Sequence[Recovery], zero: float, x: Scale, marks: Sequence[float]) -> Markup:
    """A row for each struck process: how long it was struck, and until it worked again."""
    hosts = list(dict.fromkeys(each.strike.fault.host for each in recoveries))
    bottom = 4 + _ROW * len(hosts)
    parts = [line(x(mark), 0, x(mark), bottom, "mark") for mark in marks]
    for row, host in enumerate(hosts):
        y = 4 + _ROW * row
        parts.append(text(12, y + 14, host, "name"))
        parts.append(line(GUTTER, y + _ROW, _WIDTH - 2, y + _ROW, "grid"))
        for each in (each for each in recoveries if each.strike.fault.host == host):
            parts += _fault(each, zero, x, y)
    return drawing(_WIDTH, bottom + 2, f"{len(recoveries)} faults, a row for each process", *parts)


def _fault(recovery: Recovery, zero: float, x: Scale, y: float) -> Iterator[Markup]:
    strike = recovery.strike
    begun, ended = strike.begun - zero, strike.ended - zero
    back = ended if recovery.seconds is None else ended + recovery.seconds
    title = f"{strike.fault.kind} at {seconds(begun)}: {strike.proof}"
    middle = y + _ROW / 2
    if strike.fault.kind == "kill":
        yield rectangle(x(begun), y + 3, max(x(back) - x(begun), 2.0), _ROW - 6, "absent", title)
        yield element("path", titled(title), d=f"M{x(begun) - 4:.1f} {middle - 4:.1f}l8 8m0-8l-8 8", class_="cross")
    else:
        yield rectangle(x(begun), y + 3, max(x(ended) - x(begun), 2.0), _ROW - 6, "struck", title)
    verb, took = _VERBS[strike.fault.kind], seconds(recovery.seconds)
    lasted = "" if strike.fault.kind == "kill" else f" for {seconds(ended - begun)}"
    words = f"{verb}{lasted}, not seen again" if recovery.seconds is None else f"{verb}{lasted}, back after {took}"
    is_left = x(back) > x.stop - 200
    at, classes = (x(begun) - 8, ("small", "end")) if is_left else (x(back) + 8, ("small",))
    yield text(at, y + 14, words, *classes)


def _evaluated(record: RunRecord) -> list[EvaluationLine]:
    """Losses but the first one, which is that of an untrained model, and out of proportion."""
    return [item for item in record.evaluations if item.eval_loss is not None and item.time > 0.0][1:]


def _loss(record: RunRecord, calm: RunRecord, x: Scale, marks: Sequence[float]) -> Markup:
    """The loss of the global model under the plan, and undisturbed."""
    losses = [item.eval_loss for each in (record, calm) for item in _evaluated(each) if item.eval_loss is not None]
    y = Scale.over(losses, _LOSS - 22, 10)
    parts = [line(x(mark), 0, x(mark), _LOSS - 12, "mark") for mark in marks]
    parts.append(text(12, 20, "loss", "name"))
    for value in y.ticks(3):
        parts.append(line(GUTTER, y(value), _WIDTH - 2, y(value), "grid"))
        parts.append(text(GUTTER - 8, y(value) + 4, decimal(value, 2), "small", "end"))
    for each, name, class_ in ((calm, "undisturbed", "series calm"), (record, "under the plan", "series")):
        points = [(x(item.time), y(item.eval_loss)) for item in _evaluated(each) if item.eval_loss is not None]
        points = [(at, loss) for at, loss in points if at <= x.stop]
        if points:
            d = "M" + "L".join(f"{at:.1f} {loss:.1f}" for at, loss in points)
            parts.append(element("path", titled(f"held-out loss {name}"), d=d, class_=f"{class_} c0"))
            if each is record:
                at, loss = points[-1]
                parts.append(text(at - 6, loss - 8, decimal(_evaluated(each)[-1].eval_loss), "value", "end"))
    return drawing(_WIDTH, _LOSS, "Held-out loss of the global model over the run", *parts)


PAGE: Final = "chaos.html"
PICTURE: Final = "chaos.svg"
_COLUMNS: Final = (
    *("program", "outcome", "calm time", "time", "uptime", "calm goodput", "goodput", "kept", "merged"),
    *("calm loss", "loss", "waits"),
)
_FAULTS: Final = ("at", "fault", "host", "works again", "proof")
_ACCOUNTS: Final = ("total", "merged", "overlapped", "refused", "lost", "pending")
_LEGEND: Final = (
    "calm: the same run undisturbed; goodput: of the learners' time, what trained tokens that were kept; kept: goodput "
    "/ calm goodput; uptime: of the time, that in which some learner stepped; waits: how often a learner that was not "
    "struck itself began a step more than 1 ms late because of another host."
)
_DRAWN: Final = (
    "Every inner step of every learner under the plan; the merges of the syncer and the evaluations, where there are "
    "such; what was struck, with a dashed box until it worked again; and the loss of the global model, dashed where it "
    "is that of the undisturbed run."
)


def write_page(folder: Path, tried: Sequence[Tried]) -> Sheet:
    """Write the page into `folder`, and beside the runs of each program its picture alone; returns what it shows."""
    parts = [
        PageSection(
            "What it cost",
            [table(_COLUMNS, list(map(_figures, tried)), ("calm time", "outcome", "merged", "time"), ("outcome",))],
            [*headline(tried), *paces(tried), _LEGEND],
            kept(tried) if any(each.struck.strikes for each in tried) else None,
            "Goodput under the plan, as a share of the program's own undisturbed goodput.",
        )
    ]
    for each in tried:
        record = each.struck.record
        picture = whole_run(each.struck, each.calm.record)
        write_bytes(record.folder.parent / PICTURE, document(picture).encode("utf-8"))
        accounts = [whole(record.number(f"tokens_{name}")) for name in _ACCOUNTS]
        tables = [table(("tokens trained", *_ACCOUNTS[1:]), [accounts])]
        if each.struck.strikes:
            tables.insert(0, table(_FAULTS, _faults_of(each), ("proof",), ("fault", "host", "proof")))
        parts.append(PageSection(each.order.program, tables, (), picture, _DRAWN))
    both = [
        (index, f"{each.order.program}, {name}", run.record, run is each.struck)
        for index, each in enumerate(tried)
        for name, run in (("undisturbed", each.calm), ("under the plan", each.struck))
    ]
    curves = [
        curve
        for index, name, record, is_main in both
        for curve in evaluated(record, LOSS, name, learner_class(index), is_main=is_main)
    ]
    charts = [Chart("loss", "Loss on held-out data", curves, [])]
    note = "Bold curves are of runs under the plan, thin ones of the same run undisturbed."
    parts.append(PageSection("Global loss", (), [note], charts=charts, axes=("time", "tokens"), is_detail=True))
    reports = [(name, os.path.relpath(record.folder / REPORT, folder), "") for _, name, record, _ in both]
    parts.append(PageSection("Runs", links=reports, is_detail=True))
    sheet = Sheet("Chaos", " \u00b7 ".join(each.order.program for each in tried), parts, as_data(tried))
    write_sheet(folder / PAGE, sheet)
    return sheet


def _figures(tried: Tried) -> tuple[str, ...]:
    """A row of the programs' table."""
    struck, calm = tried.struck.record.number, tried.calm.record.number
    return (
        tried.order.program,
        tried.struck.record.text("outcome"),
        *map(seconds, (calm("wall_seconds"), struck("wall_seconds"))),
        *map(percent, (struck("uptime"), calm("goodput"), struck("goodput"), tried.ratio, struck("merged_share"))),
        *map(decimal, (calm("eval_loss_final"), struck("eval_loss_final"))),
        str(tried.struck.waits),
    )


def _faults_of(tried: Tried) -> list[tuple[str, ...]]:
    """A row for each strike, with the seconds until the target worked again."""
    again = {id(each.strike): each.seconds for each in tried.struck.recoveries}
    return [
        (
            seconds(each.fault.at),
            each.fault.kind,
            each.fault.host,
            seconds(again.get(id(each))),
            each.proof or f"did not happen: {each.why}",
        )
        for each in tried.struck.strikes
    ]
