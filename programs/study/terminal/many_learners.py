"""The rows of many learners on a screen: those that `crowd` looks for, and quantiles of all. JSON has all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.text import Text

from isthmus.programs.engine.results import words
from isthmus.programs.engine.results.crowd import LOST, QUANTILES, ROWS_MAX, looked_for, lost_share, quantile

Reports = Mapping[int, Mapping[str, Any]]


def kind_of(state: str | Text) -> str:
    """The kind of a state, of which learners may be in one: its first word, without how long it lasts."""
    return str(state).partition(" ")[0].rstrip(":")


def picked(states: Mapping[int, str], reports: Reports) -> list[int]:
    """The slots that have a row: all of `states`, by slot, or of many those that are looked for."""
    slow = {slot: report.get("step_ms") for slot, report in reports.items()}
    return looked_for(states, slow, {slot: lost_share(report) for slot, report in reports.items()})


def summary_rows(
    states: Mapping[int, str],
    reports: Reports,
    name: str,
    cells: Callable[[Mapping[str, Any]], Sequence[str]],
    columns: Sequence[str],
) -> list[dict[str, str | Text]]:
    """The rows that stand for all learners, with their title in the column `name`: how many are in the state that most
    are in, and the quantiles of each figure; none where every learner has a row. `cells` makes the `columns` of a
    report."""
    if len(states) <= ROWS_MAX:
        return []
    usual, count = Counter(states.values()).most_common(1)[0]
    rows: list[dict[str, str | Text]] = [{name: f"{len(states):,} learners", "state": f"{count:,} {usual}"}]
    told = [report for slot, report in reports.items() if slot in states]
    fields = ("step", "tokens", "loss", "step_ms", "staleness", "bytes_sent", "bytes_received")
    for share, title in QUANTILES if told else ():
        made = {field: quantile([each.get(field) for each in told], share) for field in fields}
        shown = dict(
            zip(columns, cells({field: value for field, value in made.items() if value is not None}), strict=True)
        )
        rows.append({name: title, **shown, LOST: _lost(quantile([lost_share(each) for each in told], share))})
    return rows


def lost_cell(report: Mapping[str, Any]) -> dict[str, str | Text]:
    """What a learner loses, by column."""
    return {LOST: _lost(lost_share(report))}


def _lost(share: float | None) -> str:
    return "" if share is None else words.percent(share)
