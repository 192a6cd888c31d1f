"""A comparison on the terminal: a line while its runs are in progress, and a table of its sides."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Final, final

import msgspec
from rich.console import Console
from rich.text import Text

from isthmus.programs.comparison.outcome import Comparison, Figure
from isthmus.programs.comparison.runs import News
from isthmus.programs.comparison.statistics import Difference
from isthmus.programs.islands.whole_runs import Places
from isthmus.programs.results.numbers import UNKNOWN, decimal, percent, seconds, size
from isthmus.programs.results.record import LOSS
from isthmus.programs.terminal.fitted_table import Column, fitted

_WIDE: Final = 160
"""Characters a line if the output is no terminal."""
_DISPENSABLE: Final = ("in a merge", "goodput", "merged", "sent", "time", "runs", "interval")


@final
class Progress:
    """Shows on standard error which runs go on: on a terminal in one line that changes, elsewhere in a line a run."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._made = 0
        self._done = "no"

    def hear(self, news: News | Places) -> None:
        """Show it."""
        if isinstance(news, Places):
            self._line(placed(news))
            return
        self._done = f"{news.done} of {news.many}"
        if news.failure:
            self._line(f"{news.name} failed: {news.failure}")
        elif news.summary is not None:
            self._made += 1
            took = seconds(news.summary.get("wall_seconds"))
            loss = decimal(news.summary.get("eval_loss_final"))
            self._line(f"{news.done} of {news.many}  {news.name}: {loss}, {took}{self._left(news)}")
        elif self._is_terminal:
            share = "" if news.share is None else f" {100 * news.share:.0f} %"
            sys.stderr.write(f"\r\x1b[2K{news.done} of {news.many} runs; {news.name}{share}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def broken_off(self) -> None:
        """Print that the comparison was interrupted, and how to continue it."""
        self._line(f"{self._done} runs are done; the same command goes on with the others.")

    def _left(self, news: News) -> str:
        left = (time.monotonic() - self._begun) / self._made * (news.many - news.done)
        return f"; about {seconds(left)} left" if left else ""

    def _line(self, text: str) -> None:
        self.clear()
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def placed(where: Places) -> str:
    """The devices of runs in virtual time, in words."""
    count = len(where.environments)
    runs = "one run at a time" if count == 1 else f"{count} runs at once"
    if not where.devices:
        platform = "what JAX_PLATFORMS names" if where.platform is None else "the CPU"
        return f"Computing on {platform}, {runs}."
    kind = "GPU" if where.platform == "cuda" else "TPU chip"
    many = f"{where.devices} {kind}{'s' if where.devices > 1 else ''}"
    share = "" if where.share is None else f", each with {where.share:g} of the memory of one"
    return f"Computing on {many}, {runs}{share}. JAX_PLATFORMS=cpu has them on the CPU."


def show(comparison: Comparison, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode() + "\n")
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    for columns in _tables(comparison):
        console.print(fitted(columns, console.width, _DISPENSABLE))
        console.print()
    for line in notes(comparison):
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"Runs and page: {comparison.folder}"), soft_wrap=True)


def _tables(comparison: Comparison) -> Iterator[list[Column]]:
    """Two tables: the compared metrics, and the figures of the runs."""
    sides = comparison.sides
    names = Column("", [side.name for side in sides], is_text=True)
    yield [
        names,
        Column("runs", [str(len(side.runs)) for side in sides]),
        *(Column(name, [_figure(side.finals.get(name)) for side in sides]) for name in comparison.metrics),
        Column("- reference", [_mean(side.differences.get(LOSS)) for side in sides]),
        Column("interval", [_ends(side.differences.get(LOSS)) for side in sides]),
        *([Column("", [side.verdict or "" for side in sides])] if comparison.margin is not None else []),
    ]
    yield [
        names,
        Column("alone - this", [_mean(side.gain) for side in sides]),
        Column("interval", [_ends(side.gain) for side in sides]),
        Column("time", [seconds(side.seconds.mean) for side in sides]),
        Column("goodput", [_percent(side.goodput) for side in sides]),
        Column("merged", [_percent(side.merged_share) for side in sides]),
        Column("in a merge", ["" if (mean := side.contributors.mean) is None else decimal(mean, 2) for side in sides]),
        Column("sent", [size(side.bytes.mean) for side in sides]),
    ]


def notes(comparison: Comparison) -> Iterator[str]:
    """The meaning of the columns, and missing runs."""
    clock = "real time" if comparison.clock == "real" else "virtual time"
    speeds = f" at speeds {', '.join(f'{speed:g}' for speed in comparison.speeds)}" if comparison.speeds else ""
    many = len(comparison.seeds)
    yield (
        f"{comparison.tokens:,} tokens, {many} seed{'s' if many > 1 else ''}, {clock}{speeds}. Means ± standard "
        "deviations over seeds; differences are paired by seed, with 95 % intervals of Student's t."
    )
    yield f"The reference is {comparison.reference}; alone is one learner on its share of the tokens."
    if comparison.devices:
        yield f"Computed on {', '.join(comparison.devices)}."
    if comparison.margin is not None:
        yield f"Verdicts are against a margin of {comparison.margin:g}, given before the first run."
    if comparison.missing:
        yield f"{comparison.missing} of {many * len(comparison.sides)} runs are missing; the same command goes on."
    for side in comparison.sides:
        for run in side.runs:
            if run.remark:
                yield f"{side.name}, seed {run.seed}, is judged failed, and counts all the same: {run.remark}"


def _mean(found: Difference | None) -> str:
    return "" if found is None else f"{found.mean:+.3f}"


def _ends(found: Difference | None) -> str:
    return "" if found is None or found.low is None else f"{found.low:+.3f} to {found.high:+.3f}"


def _figure(figure: Figure | None) -> str:
    if figure is None or figure.mean is None:
        return UNKNOWN
    return decimal(figure.mean) + (f" ± {decimal(figure.deviation)}" if figure.deviation is not None else "")


def _percent(figure: Figure) -> str:
    return "" if figure.mean is None else percent(figure.mean)
