"""What a site brings to the others: the losses on their own data of runs with it and without it, paired by seed.

Decides which figures are compared, and what is told of them; trains nothing (`leaving_out`). Losses are those of the
final models on each site's own held-out part, which only that site has. How far a site's outer gradients agree with
the others' is no estimate of it: that was measured, and had the wrong sign (docs/explanation/sites.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import msgspec

from isthmus.programs.engine.results.words import UNKNOWN, decimal, seconds, whole
from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
from isthmus.programs.wings.compare.compare_outcome import FigureDifference, difference

DONE: Final = "done"


class SiteRun(msgspec.Struct, frozen=True):
    """One run that is over: with all sites, or without the one; the loss of its final model by site, None of a site
    that keeps it."""

    seed: int
    is_without: bool
    run: str
    outcome: str
    tokens: int
    seconds: float | None
    losses: dict[str, float | None]
    site_tokens: dict[str, int]

    @classmethod
    def of(cls, seed: int, run: str, summary: Mapping[str, Any], *, is_without: bool) -> SiteRun:
        """That of a summary."""
        sites: Sequence[Mapping[str, Any]] = summary.get("sites") or ()
        return cls(
            seed=seed,
            is_without=is_without,
            run=run,
            outcome=str(summary["outcome"]),
            tokens=int(summary["tokens_total"]),
            seconds=summary.get("wall_seconds"),
            losses={site["site"]: site["global_last"] if site.get("is_final") else None for site in sites},
            site_tokens={site["site"]: int(site["tokens"]) for site in sites},
        )


class RunCost(msgspec.Struct, frozen=True):
    """What it takes: so many runs and tokens, and so long by the pace of an earlier run, None where there is none."""

    runs: int
    tokens: int
    seconds: float | None

    @property
    def words(self) -> str:
        """The cost, for people."""
        took = "how long that takes is not known" if self.seconds is None else f"about {seconds(self.seconds)}"
        return f"{self.runs} runs of the sites, {whole(self.tokens)} tokens in all at most; {took}"


class SiteChange(msgspec.Struct, frozen=True):
    """One other site: the means over seeds of its losses with and without the site, and their difference."""

    site: str
    with_it: float | None
    without_it: float | None
    change: FigureDifference | None


class SiteEffect(msgspec.Struct, frozen=True):
    """What leaving a site out does to the others."""

    site: str
    seeds: list[int]
    changes: list[SiteChange]
    runs: list[SiteRun]
    cost: RunCost
    failed: int


def cost_of(tokens: int, seeds: int, pace: float | None) -> RunCost:
    """That of so many seeds, where a run has so many tokens; `pace`: tokens a second."""
    runs = 2 * seeds
    return RunCost(runs, runs * tokens, None if not pace else runs * tokens / pace)


def effect_of(site: str, seeds: Sequence[int], runs: Iterable[SiteRun], cost: RunCost) -> SiteEffect:
    """The effect, by the runs of these seeds that are done."""
    made = [run for run in runs if run.seed in seeds]
    done = [run for run in made if run.outcome == DONE]
    sides = {side: [run for run in done if run.is_without is side] for side in (False, True)}
    others = sorted({name for run in done for name in run.losses if name != site})
    return SiteEffect(
        site=site,
        seeds=list(seeds),
        changes=[_change(name, sides[False], sides[True]) for name in others],
        runs=made,
        cost=cost,
        failed=len(made) - len(done),
    )


def _change(name: str, having: Sequence[SiteRun], lacking: Sequence[SiteRun]) -> SiteChange:
    with_it, without_it = _losses(name, having), _losses(name, lacking)
    return SiteChange(name, _mean(with_it), _mean(without_it), difference(without_it, with_it))


def _mean(losses: Mapping[int, float]) -> float | None:
    return fmean(losses.values()) if losses else None


def _losses(name: str, runs: Sequence[SiteRun]) -> dict[int, float]:
    return {run.seed: loss for run in runs if (loss := run.losses.get(name)) is not None}


def sheet(effect: SiteEffect) -> Sheet:
    """The result as tables, all figures of which are the effect itself."""
    rows = [
        (
            each.site,
            decimal(each.with_it),
            decimal(each.without_it),
            UNKNOWN if each.change is None else f"{each.change.mean:+.3g}",
            _interval(each.change),
        )
        for each in effect.changes
    ]
    names = ("site", "with", "without", "change", "interval")
    parts = [
        PageSection(
            f"Leaving {effect.site} out",
            [table(names, rows)],
            [
                f"Losses of the final models on each site's own held-out data; above 0 a site loses without "
                f"{effect.site}. Both runs of a seed begin alike, and the others have as many tokens in both.",
                *_notes(effect),
            ],
        )
    ]
    missing = f"{effect.failed} runs are not done: the same command tries them again." if effect.failed else ""
    title = f"What {effect.site} brings to the other sites"
    return Sheet(title, f"{len(effect.seeds)} seeds.", parts, effect, missing)


def _notes(effect: SiteEffect) -> Iterable[str]:
    pairs = max((len(each.change.seeds) for each in effect.changes if each.change is not None), default=0)
    if pairs < 2:
        yield "No interval: that takes two seeds at least (--seeds)."
    if kept := [each.site for each in effect.changes if each.with_it is None and each.without_it is None]:
        yield f"Without a figure: {', '.join(kept)}; they keep their losses, or did not evaluate the last model."


def _interval(change: FigureDifference | None) -> str:
    if change is None or change.low is None or change.high is None:
        return UNKNOWN
    return f"{change.low:+.3g} to {change.high:+.3g}"
