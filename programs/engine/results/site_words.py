"""The sites of a run, in words: for terminal, report and page, from the rows of a status or of summary.json.

Decides what stands for a figure that a site keeps, and which figures are compared: at one moment those of the global
model and of the site's own last one, on the site's own held-out part. A file may be of another version, or damaged, so
everything may lack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.results.record import as_number
from isthmus.programs.engine.results.words import UNKNOWN, counted, decimal, scaled, size, whole

NOT_TOLD: Final = "not told"


class SiteRow(NamedTuple):
    """One site; figures are None where they are not known, or where the site keeps them."""

    site: str
    is_told: bool
    is_final: bool
    same_data: tuple[str, ...]
    digest: str
    learners: float | None
    bytes: float | None
    data_tokens: float | None
    tokens: float | None
    epochs: float | None
    evaluated_tokens: float | None
    global_first: float | None
    global_now: float | None
    own_now: float | None
    global_last: float | None
    own_last: float | None
    global_last_bits: float | None
    own_last_bits: float | None
    metrics: tuple[tuple[str, float | None, float | None], ...]
    """(name, of the global model, of the own one) of every other scalar that is evaluated."""

    @property
    def gap(self) -> float | None:
        """The loss of its own last model minus that of the global one: above 0 where the global one is better."""
        return None if self.own_last is None or self.global_last is None else self.own_last - self.global_last

    def loss(self, value: float | None) -> str:
        """A loss of this site."""
        return decimal(value) if self.is_told else NOT_TOLD


_NUMBERS: Final = (
    *("bytes", "data_tokens", "tokens", "epochs", "evaluated_tokens", "global_first", "global_now", "own_now"),
    *("global_last", "own_last", "global_last_bits", "own_last_bits"),
)


def rows(known: Mapping[str, Any]) -> list[SiteRow]:
    """The sites in a status or a summary; none where there are none, or where they cannot be read."""
    sites = known.get("sites")
    return [_row(each) for each in sites if isinstance(each, Mapping)] if isinstance(sites, list | tuple) else []


def _row(site: Mapping[str, Any]) -> SiteRow:
    slots, same = site.get("learners"), site.get("same_data")
    return SiteRow(
        site=str(site.get("site", UNKNOWN)),
        is_told=site.get("told") is not False,
        is_final=site.get("is_final") is True,
        same_data=tuple(map(str, same)) if isinstance(same, list | tuple) else (),
        digest=str(site.get("digest") or ""),
        learners=len(slots) if isinstance(slots, list | tuple) else None,
        metrics=tuple(_metrics(site)),
        **{name: as_number(site.get(name)) for name in _NUMBERS},
    )


def _metrics(site: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float | None]]:
    found = [site.get(f"{model}_metrics") for model in ("global", "own")]
    of_global, of_own = (each if isinstance(each, Mapping) else {} for each in found)
    for name in dict.fromkeys([*of_global, *of_own]):
        yield str(name), as_number(of_global.get(name)), as_number(of_own.get(name))


def signed(value: float | None) -> str:
    """A difference of losses, with its sign."""
    return UNKNOWN if value is None else f"{value:+.3f}"


def epochs(value: float | None) -> str:
    """How often its data were passed over."""
    return UNKNOWN if value is None else f"{value:.3g}"


def lines(known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A keyword and a text for each site."""
    for row in rows(known):
        yield f"site {row.site}", "; ".join([_trained(row), *_losses(row), *_same(row)])


def _trained(row: SiteRow) -> str:
    passes = "" if row.epochs is None else f", {epochs(row.epochs)} passes over its {scaled(row.data_tokens)}"
    return f"{scaled(row.tokens)} tokens{passes}"


def _losses(row: SiteRow) -> Iterator[str]:
    if not row.is_told:
        yield f"losses on its own data: {NOT_TOLD}"
        return
    if row.global_first is None and row.global_last is None:
        return
    yield f"on its own data {decimal(row.global_first)} -> {decimal(row.global_last)}"
    if row.own_last is not None:
        yield f"its own last model {decimal(row.own_last)} ({signed(row.gap)})"


def _same(row: SiteRow) -> Iterator[str]:
    if row.same_data:
        yield same_data(row)


def same_data(row: SiteRow) -> str:
    """That other sites have the same data."""
    return f"the same data as {', '.join(row.same_data)}"


def data(row: SiteRow) -> str:
    """What is known of its data."""
    digest = f", digest {row.digest[:12]}" if row.digest else ""
    learners = "" if row.learners is None else f", {counted(int(row.learners), 'learner')}"
    return f"{size(row.bytes)}, {whole(row.data_tokens)} tokens{digest}{learners}"
