"""What the books of a run have of its sites: machines whose learners train on data of their own.

Decides which life counts for which site, which evaluations are a site's first and last, and since when the home awaits
none of the last ones any more. A site is named as its machine. Losses are those of the site's own held-out part; of one
that keeps its figures there are none here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final, TypedDict

import msgspec

from isthmus.ops.data.site_terms import SHARE, digest_of_words
from isthmus.ops.exchange.messages import SiteEvaluated, SiteReport, SiteScores
from isthmus.ops.island.evaluation_time import STOPPED_NS
from isthmus.programs.engine.recorder.last_evaluation import SPARE_NS
from isthmus.programs.engine.results.lines import finite, metrics_of

POINTS_MAX: Final = 512
"""Evaluations of a site that are kept: those of 25 lives at most. Beyond that its first one, and the newest."""
METRICS_MAX: Final = 128
"""Scalars of an evaluation that are kept, beside the loss; and the letters of the name of one."""
HISTORY_MAX: Final = 63
"""Evaluations of a site in a status, beside its first one."""
WAIT_NS: Final = 30_000_000_000
"""For the evaluations of the final model, beside SHARE of the time of the run: two batches on a device that is slow."""


class SiteModel(msgspec.Struct, frozen=True):
    """What one model has on the held-out part of a site; None where it is not finite, or not known."""

    loss: float | None = None
    error: float | None = None
    bits: float | None = None
    metrics: dict[str, float | None] = {}

    @classmethod
    def of(cls, scores: SiteScores | None) -> SiteModel:
        """That of a message."""
        if scores is None:
            return cls()
        loss, error, bits = (finite(scores.get(name)) for name in ("loss", "error", "bits"))  # type: ignore[arg-type]
        # As many as a machine that lies may tell would fill the memory of the recorder.
        metrics = [(name[:METRICS_MAX], value) for name, value in scores["metrics"][:METRICS_MAX]]
        return cls(loss, error, bits, metrics_of(metrics))


class SitePoint(msgspec.Struct, frozen=True):
    """An evaluation by one learner; `tokens` are those of all, `own_tokens` those of its life, and `predicted` those on
    which it is."""

    learner: int
    incarnation: int
    number: int
    kind: str
    tokens: int
    own_tokens: int
    predicted: int
    of_global: SiteModel
    of_own: SiteModel

    @property
    def identity(self) -> tuple[int, int, int]:
        """What tells it from others."""
        return self.learner, self.incarnation, self.number


class SiteMemory(msgspec.Struct):
    """One site: what is known of its data, the lives that have trained on them, and its evaluations."""

    digest: str = ""
    bytes: int = 0
    tokens: int = 0
    is_told: bool = True
    lives: set[tuple[int, int]] = set()
    of_former: set[tuple[int, int]] = set()
    """Those of them that have trained on other data, before the owner named these."""
    points: list[SitePoint] = []

    def add(self, life: tuple[int, int], report: SiteReport) -> None:
        """Take in what a life has reported; nothing changes where that is known."""
        digest = digest_of_words(report["digest"])
        if digest != self.digest and any(slot == life[0] and later > life[1] for slot, later in self.lives):
            return  # It is of the data that the owner had named before, and late.
        if digest != self.digest or not report["is_told"]:
            # Losses on the held-out parts of other data are no others' history, and what is kept now is shown no more.
            self.points = []
        if digest != self.digest:
            self.of_former = self.lives - {life}
        self.digest, self.bytes, self.tokens = digest, report["bytes"], report["tokens"]
        self.is_told = report["is_told"]
        self.lives.add(life)
        known = {point.identity for point in self.points}
        new = [point for each in report["evaluations"] if (point := _point(life, each)).identity not in known]
        if new:
            points = sorted([*self.points, *new], key=lambda point: (point.tokens, point.identity))
            self.points = points if len(points) <= POINTS_MAX else [points[0], *points[1 - POINTS_MAX :]]

    def last(self) -> list[SitePoint]:
        """The newest evaluations: of the final model that of each learner, else the newest one."""
        newest = max((point.tokens for point in self.points), default=0)
        finals = {point.learner: point for point in self.points if point.kind == "final" and point.tokens >= newest}
        return list(finals.values()) or self.points[-1:]

    def before_last(self) -> SitePoint | None:
        """The newest one on the way, behind the first."""
        return next((point for point in reversed(self.points[1:]) if point.kind != "final"), None)


def _point(life: tuple[int, int], made: SiteEvaluated) -> SitePoint:
    models = SiteModel.of(made["of_global"]), SiteModel.of(made["of_own"])
    counts = made["tokens"], made["own_tokens"], made["predicted"]
    return SitePoint(*life, made["number"], made["kind"], *counts, *models)


class SiteHistory(TypedDict):
    """One evaluation of a site, as status and summary have it."""

    tokens: int
    own_tokens: int
    learner: int
    kind: str
    global_loss: float | None
    own_loss: float | None


class SiteSummary(TypedDict):
    """One site, as status and summary have it: losses on its own held-out part, None where it keeps them, or where
    there are none. Those that are last are means over its learners."""

    site: str
    learners: list[int]
    digest: str
    bytes: int
    data_tokens: int
    same_data: list[str]
    tokens: int
    epochs: float | None
    told: bool
    is_final: bool
    evaluated_tokens: int | None
    global_first: float | None
    global_now: float | None
    own_now: float | None
    global_last: float | None
    own_last: float | None
    global_last_error: float | None
    own_last_error: float | None
    global_last_bits: float | None
    own_last_bits: float | None
    global_metrics: dict[str, float | None]
    own_metrics: dict[str, float | None]
    history: list[SiteHistory]


def summaries(sites: Mapping[str, SiteMemory], trained: Iterable[Sequence[int]]) -> list[SiteSummary]:
    """A row for each site, by name; `trained` are [slot, incarnation, tokens] of all lives."""
    tokens = {(slot, incarnation): count for slot, incarnation, count in trained}
    return [_summary(name, sites, tokens) for name in sorted(sites)]


def _summary(name: str, sites: Mapping[str, SiteMemory], tokens: Mapping[tuple[int, int], int]) -> SiteSummary:
    site = sites[name]
    own = sum(tokens.get(life, 0) for life in site.lives)
    passed = sum(tokens.get(life, 0) for life in site.lives - site.of_former)
    last, before = site.last(), site.before_last()
    models, owns = [point.of_global for point in last], [point.of_own for point in last]
    return SiteSummary(
        site=name,
        learners=sorted({slot for slot, _ in site.lives}),
        digest=site.digest,
        bytes=site.bytes,
        data_tokens=site.tokens,
        same_data=[other for other, each in sorted(sites.items()) if other != name and each.digest == site.digest],
        tokens=own,
        epochs=round(passed / site.tokens, 6) if site.tokens else None,
        told=site.is_told,
        is_final=bool(last) and last[0].kind == "final",
        evaluated_tokens=(last[0].predicted or None) if last else None,
        global_first=site.points[0].of_global.loss if site.points else None,
        global_now=None if before is None else before.of_global.loss,
        own_now=None if before is None else before.of_own.loss,
        global_last=_mean([model.loss for model in models]),
        own_last=_mean([model.loss for model in owns]),
        global_last_error=_mean([model.error for model in models]),
        own_last_error=_mean([model.error for model in owns]),
        global_last_bits=_mean([model.bits for model in models]),
        own_last_bits=_mean([model.bits for model in owns]),
        global_metrics=_means([model.metrics for model in models]),
        own_metrics=_means([model.metrics for model in owns]),
        history=[
            SiteHistory(
                tokens=point.tokens,
                own_tokens=point.own_tokens,
                learner=point.learner,
                kind=point.kind,
                global_loss=point.of_global.loss,
                own_loss=point.of_own.loss,
            )
            for point in [*site.points[:1], *site.points[1:][-HISTORY_MAX:]]
        ],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one is not known: the others would not stand for it; or where it is beyond all numbers."""
    known = [value for value in values if value is not None]
    try:
        return fmean(known) if known and len(known) == len(values) else None
    except OverflowError:
        return None


def _means(metrics: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    names = dict.fromkeys(name for each in metrics for name in each)
    return {name: _mean([each.get(name) for each in metrics]) for name in names}


def awaited(reports: Mapping[int, Mapping[str, Any]], live: frozenset[tuple[int, int]]) -> bool:
    """Whether a learner lives whose evaluation of the final model on its site's data is still to come."""
    return any(
        report.get("site", {}).get("awaits", False) and (slot, report["incarnation"]) in live
        for slot, report in reports.items()
    )


def patience(trained_ns: int, *, is_stopped: bool) -> int:
    """For how long these are awaited once the final model is there, of a run that has trained for so long."""
    return STOPPED_NS + SPARE_NS if is_stopped else WAIT_NS + round(SHARE * trained_ns)
