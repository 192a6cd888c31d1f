"""The page of `isthmus chaos`: the terminal's figures, and the pictures, in one file that loads nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from isthmus.programs.chaos.comparison import Tried
from isthmus.programs.chaos.pictures import kept, whole_run
from isthmus.programs.chaos.words import headline
from isthmus.programs.charts.curves import Chart, Curve
from isthmus.programs.charts.style import learner_class
from isthmus.programs.report.page import rendered
from isthmus.programs.report.report import document
from isthmus.programs.results.reading import load
from isthmus.programs.results.record import RunRecord
from isthmus.runtime.system.files import write_bytes

PAGE: Final = "chaos.html"
PICTURE: Final = "chaos.svg"


def write_page(folder: Path, tried: Sequence[Tried]) -> Path:
    """Write the page into `folder`, and beside the runs of each program its picture alone; the path of the page."""
    records = [(load(each.struck.folder), load(each.calm.folder)) for each in tried]
    pictures = [whole_run(each.struck, *both) for each, both in zip(tried, records, strict=True)]
    for each, picture in zip(tried, pictures, strict=True):
        write_bytes(each.struck.folder.parent / PICTURE, document(picture).encode("utf-8"))
    values: dict[str, Any] = {
        "headline": list(headline(tried)),
        "kept": kept(tried) if any(each.struck.strikes for each in tried) else None,
        "tried": [each.as_data() for each in tried],
        "ratios": [each.ratio for each in tried],
        "pictures": pictures,
        "faults": [_faults(each) for each in tried],
        "accounts": [struck.summary for struck, _ in records],
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


def _faults(tried: Tried) -> list[Mapping[str, Any]]:
    """The strikes, with the seconds until the target worked again."""
    back = {id(each.strike): each.seconds for each in tried.struck.recoveries}
    return [{**strike.as_data(), "back": back.get(id(strike))} for strike in tried.struck.strikes]


def _curves(tried: Sequence[Tried], records: Sequence[tuple[RunRecord, RunRecord]]) -> Iterator[Curve]:
    """The loss of the global model of each program, undisturbed (thin) and under the plan (bold)."""
    for index, (each, (struck, calm)) in enumerate(zip(tried, records, strict=True)):
        for name, record, is_main in (("undisturbed", calm, False), ("under the plan", struck, True)):
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
