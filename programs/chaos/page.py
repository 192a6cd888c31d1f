"""The page of `isthmus chaos`: the terminal's figures, with every learner's steps, the faults and the global loss.

One file that loads nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from isthmus.programs.chaos.comparison import Tried
from isthmus.programs.chaos.figures import Figures
from isthmus.programs.chaos.strikes import Strike
from isthmus.programs.charts.absence import draw_absence
from isthmus.programs.charts.axes import Scale, drawing, line, rectangle, text, time_axis
from isthmus.programs.charts.curves import Chart, Curve
from isthmus.programs.charts.style import learner_class
from isthmus.programs.charts.window import Window
from isthmus.programs.report.page import rendered
from isthmus.programs.results.numbers import seconds
from isthmus.programs.results.reading import load
from isthmus.programs.results.record import RunRecord
from isthmus.runtime.system.files import write_bytes

PAGE: Final = "chaos.html"
_WIDTH: Final = 1080.0
_GUTTER: Final = 104.0
"""As in `charts.absence`, below which the faults are drawn."""
_ROW: Final = 22.0
_TOP: Final = 26.0


def write_page(folder: Path, tried: Sequence[Tried]) -> Path:
    """Write the page into `folder`, whole or not at all, and return its path."""
    records = [load(each.struck.folder) for each in tried]
    values: dict[str, Any] = {
        "tried": [each.as_data() for each in tried],
        "ratios": [each.ratio for each in tried],
        "pictures": [list(_pictures(each.struck, record)) for each, record in zip(tried, records, strict=True)],
        "recoveries": [[each.as_data() for each in one.struck.recoveries] for one in tried],
        "accounts": [record.summary for record in records],
        "charts": [Chart("loss", "Loss on held-out data", list(_curves(tried, records)), [])],
        "reports": [
            (f"{each.order.program}, {name}", os.path.relpath(one.folder / "report.html", folder))
            for each in tried
            for name, one in (("undisturbed", each.calm), ("under the plan", each.struck))
        ],
    }
    path = folder / PAGE
    write_bytes(path, rendered("chaos.html", **values).encode("utf-8"))
    return path


def _pictures(struck: Figures, record: RunRecord) -> Iterator[Markup]:
    """The steps of all learners over the whole run, and below them what was done to which process."""
    window = Window(0.0, max(record.wall_seconds, 1e-3))
    yield draw_absence(record, window, record.absences, _WIDTH)
    happened = [each for each in struck.strikes if each.proof]
    if happened:
        yield _faults(happened, struck.zero, window)


def _faults(strikes: Sequence[Strike], zero: float, window: Window) -> Markup:
    """A row for each struck process, a box for each fault, as wide as it lasted."""
    hosts = list(dict.fromkeys(each.fault.host for each in strikes))
    x, bottom = Scale(window.begin, window.end, _GUTTER, _WIDTH - 2), _TOP + _ROW * len(hosts)
    parts = [time_axis(x, _TOP - 6, bottom, int(_WIDTH / 95), _TOP - 11)]
    for row, host in enumerate(hosts):
        y = _TOP + _ROW * row
        parts.append(text(12, y + 14, host, "name"))
        parts.append(line(_GUTTER, y + _ROW, _WIDTH - 2, y + _ROW, "grid"))
        for each in (each for each in strikes if each.fault.host == host):
            begin, end = x(each.begun - zero), x(each.ended - zero)
            told = f"{each.fault.kind} at {seconds(each.begun - zero)}: {each.proof}"
            parts.append(rectangle(begin, y + 3, max(end - begin, 3.0), _ROW - 6, "absent", told))
            parts.append(text(max(end, begin + 3) + 4, y + 14, each.fault.kind, "small"))
    return drawing(_WIDTH, bottom + 4, f"{len(strikes)} faults, a row for each process", *parts)


def _curves(tried: Sequence[Tried], records: Sequence[RunRecord]) -> Iterator[Curve]:
    """The loss of the global model of each program, undisturbed (thin) and under the plan (bold)."""
    for index, (each, struck) in enumerate(zip(tried, records, strict=True)):
        for name, record, is_main in (("undisturbed", load(each.calm.folder), False), ("under the plan", struck, True)):
            found = [item for item in record.evaluations if item.eval_loss is not None]
            if found:
                yield Curve(
                    f"{each.order.program}, {name}",
                    learner_class(index),
                    [round(item.tokens) for item in found],
                    [round(item.time, 4) for item in found],
                    [item.eval_loss for item in found],
                    is_main,
                )
