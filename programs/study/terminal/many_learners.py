"""Which learners of many have a row of their own on a screen, and what stands for all of them.

Up to ROWS_MAX all are shown. Of more: quantiles of their figures, and the rows of those that are looked for, the
slowest, those that lose the largest share of what they train, and those in another state than most. JSON has all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from isthmus.programs.engine.results import words

ROWS_MAX: Final = 24
"""As many as fit on a screen."""
EXTREMES: Final = 10
LOST: Final = "lost"
"""The column that many learners have beside the others: the share of what they trained that was not merged."""
QUANTILES: Final = ((0.1, "10 % have at most"), (0.5, "half"), (0.9, "90 %"))
FATES: Final = 5
"""Merged, overlapped, refused, lost, pending: an account of a fragment (`ops.exchange.token_accounts`)."""

Reports = Mapping[int, Mapping[str, Any]]


def kind_of(state: str | Text) -> str:
    """The kind of a state, of which learners may be in one: its first word, without how long it lasts."""
    return str(state).partition(" ")[0].rstrip(":")


def lost_share(report: Mapping[str, Any]) -> float | None:
    """The share of a learner's settled tokens that was not merged; None before any is settled."""
    accounts = [each for each in report.get("accounts") or () if len(each) == FATES]
    merged, others = sum(each[0] for each in accounts), sum(sum(each[1:4]) for each in accounts)
    return others / (merged + others) if merged + others else None


def picked(states: Mapping[int, str], reports: Reports) -> list[int]:
    """The slots that have a row: all of `states`, by slot, or of many those that are looked for."""
    if len(states) <= ROWS_MAX:
        return sorted(states)
    usual = Counter(states.values()).most_common(1)[0][0]
    unlike = sorted(slot for slot, each in states.items() if each != usual)[:EXTREMES]
    slowest = _most(states, lambda slot: reports.get(slot, {}).get("step_ms"))
    losing = _most(states, lambda slot: lost_share(reports.get(slot, {})))
    return sorted({*unlike, *slowest, *losing})


def _most(slots: Mapping[int, str], figure: Callable[[int], float | None]) -> list[int]:
    """The slots with the largest figures, of those that have one above 0."""
    known = [(value, -slot) for slot in slots if (value := figure(slot)) and math.isfinite(value)]
    return [-slot for _, slot in sorted(known, reverse=True)[:EXTREMES]]


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
        made = {field: _quantile([each.get(field) for each in told], share) for field in fields}
        shown = dict(
            zip(columns, cells({field: value for field, value in made.items() if value is not None}), strict=True)
        )
        rows.append({name: title, **shown, LOST: _lost(_quantile([lost_share(each) for each in told], share))})
    return rows


def lost_cell(report: Mapping[str, Any]) -> dict[str, str | Text]:
    """What a learner loses, by column."""
    return {LOST: _lost(lost_share(report))}


def _lost(share: float | None) -> str:
    return "" if share is None else words.percent(share)


def _quantile(values: Sequence[Any], share: float) -> Any:
    """The smallest value that so large a share has at most; None without any."""
    known = sorted(each for each in values if each is not None and math.isfinite(each))
    return known[max(0, math.ceil(share * len(known)) - 1)] if known else None
