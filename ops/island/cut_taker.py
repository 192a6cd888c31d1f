"""Takes the versions of a cut from the shards, when an evaluation of it is due: what is evaluated, and when it is asked
for.

Shards tell of every version; its values are asked for only where they are evaluated, those of the first cut and the
last, and never twice. The cut is the versions that were known at the moment at which the evaluation became due: each is
asked for by its number, so it does not depend on when what arrives, and shards keep them until then. Where a shard has
come back since, and told of a version again, it is that. Of values there is one model here, which is replaced by
fragment once what was to be evaluated before is: ASKED_BYTES of them, or one fragment, are on their way at once.

The first cut is taken also where nothing is evaluated: with it this host is the second one, beside the run's home, that
has a model where shards and learners die together (`recovery.second_hold`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.messages import (
    EvaluatedCut,
    EvaluationKind,
    EvaluationNeeds,
    SentVersion,
    ToldVersion,
    Vector,
    Version,
    WantedVersion,
    Whole,
    passed_on,
)
from isthmus.ops.exchange.token_accounts import Totals
from isthmus.ops.island.evaluate import EvaluationSchedule

ASKED_BYTES: Final = 8 << 20
"""Beside the model that is here, and what it replaces stays until it has come."""


@dataclass(slots=True)
class CutUnderWay:
    """A cut under way: the versions that are still to come, by fragment, and the tokens in all of it."""

    kind: EvaluationKind
    totals: Totals
    missing: dict[int, Version]
    asked: dict[int, int] = field(default_factory=dict[int, int])
    """By fragment, the number of the transfer in which it was asked for."""


@final
class CutTaker:
    """Books of versions and the versions that were asked for in; wishes, versions as they come (`taken`), and whole
    cuts out, the next one once the former is dealt with (`done`)."""

    outputs: ClassVar[tuple[str, ...]] = ("wanted", "taken", "cut")
    collects: ClassVar[tuple[str, ...]] = ("told", "version")

    @staticmethod
    def schemas(fragments: Sequence[Fragment], **_: Any) -> dict[str, Any]:
        """The forms of the messages of shards."""
        within = Annotated[int, ("range", 0, len(fragments) - 1)]
        sizes = ("by", "fragment", tuple(fragment.size for fragment in fragments))
        values = Annotated[Vector, ("sizes", sizes)] | Annotated[Vector, ("sizes", 0)]
        return {
            "told": Annotated[ToldVersion, {"fragment": within}],
            "version": Annotated[SentVersion, {"fragment": within, "values": values}],
        }

    def __init__(self, fragments: Sequence[Fragment], *, tokens: int, times: int) -> None:
        self._bytes = [4 * fragment.size for fragment in fragments]
        self._schedule = EvaluationSchedule(tokens, times)
        self._told: dict[int, ToldVersion] = {}
        self._totals = Totals()
        self._final: set[int] = set()
        self._held: dict[int, Whole] = {}
        self._cut: CutUnderWay | None = None
        self._needs = EvaluationNeeds(during=True, final=True)
        self._is_evaluated = False
        """Whether a cut has been given, and is not dealt with yet."""
        self._said: dict[int, WantedVersion] = {}
        self.is_finished = False

    def open(self, context: Any) -> None:
        """Number transfers so that none of a former life's comes twice."""
        self._number = context.member.incarnation << 32

    def __call__(
        self,
        told: Mapping[Any, ToldVersion] | None = None,
        version: Mapping[Any, SentVersion] | None = None,
        done: EvaluationNeeds | None = None,
    ) -> list[tuple[str, Any]] | None:
        """Note what is told and what has come; say what is wanted now."""
        for item in (told or {}).values():
            self._hear(item)
        emitted: list[tuple[str, Any]] = [
            ("taken", taken) for item in (version or {}).values() for taken in self._accept(item)
        ]
        if done is not None:
            self._needs, self._is_evaluated = done, False
        emitted += [("cut", cut) for cut in self._decide()]
        return [*emitted, *(("wanted", wanted) for wanted in self._wanted())] or None

    def _hear(self, told: ToldVersion) -> None:
        p, former = told["fragment"], self._told.get(told["fragment"])
        self._totals.raise_to(told["totals"])
        if told["kind"] == "final":
            self._final.add(p)
        if former is not None and _age(told) < _age(former):
            return
        self._told[p] = told
        is_later_life = former is not None and former["incarnation"] < told["incarnation"]
        if is_later_life and self._cut is not None and p in self._cut.missing:
            self._cut.missing[p] = told["version"]
            self._cut.asked.pop(p, None)

    def _accept(self, item: SentVersion) -> list[Whole]:
        """Hold a version that was asked for; returns it."""
        p, cut = item["fragment"], self._cut
        if cut is None or not item["number"] or cut.asked.get(p) != item["number"] or not len(item["values"]):
            return []
        if item["version"] != cut.missing[p]:  # That one is gone.
            cut.totals.raise_to(item["totals"])
        del cut.asked[p], cut.missing[p]
        self._held[p] = passed_on(Whole, item)
        return [self._held[p]]

    def _decide(self) -> list[EvaluatedCut]:
        """Begin a cut, where one is due; the cut, once it is whole."""
        if self._cut is None and not self._is_evaluated and len(self._told) == len(self._bytes):
            self._cut = self._due()
        cut = self._cut
        if cut is None or cut.missing:
            return []
        self._cut, self._is_evaluated, self.is_finished = None, True, cut.kind == "final"
        is_needed = cut.kind != "final" or self._needs["final"]
        values = [held["values"] for _, held in sorted(self._held.items())] if is_needed else []
        return [EvaluatedCut(kind=cut.kind, tokens=cut.totals.trained, values=values)]

    def _due(self) -> CutUnderWay | None:
        kind = self._schedule.due(self._totals.trained, is_final=len(self._final) == len(self._bytes))
        if not self._held and kind is None:
            kind = "initial"
        if kind is None or (kind == "during" and not self._needs["during"]):
            return None
        totals = Totals()
        totals.raise_to(self._totals.rows())
        missing = {p: told["version"] for p, told in sorted(self._told.items())}
        if kind == "final" and not self._needs["final"]:
            return CutUnderWay(kind, totals, {})
        return CutUnderWay(kind, totals, {p: each for p, each in missing.items() if not self._has(p, each)})

    def _has(self, p: int, version: Version) -> bool:
        return p in self._held and self._held[p]["version"] == version

    def _wanted(self) -> list[WantedVersion]:
        """What shards are to hear of what is wanted, where that has changed."""
        cut = self._cut
        if cut is not None:
            self._ask(cut)
        wishes = []
        for p, told in sorted(self._told.items()):
            wish = WantedVersion(fragment=p, version=told["version"], number=0)
            if cut is not None and p in cut.missing:
                wish = WantedVersion(fragment=p, version=cut.missing[p], number=cut.asked.get(p, 0))
            if wish != self._said.get(p):
                self._said[p] = wish
                wishes.append(wish)
        return wishes

    def _ask(self, cut: CutUnderWay) -> None:
        """Ask for as many of the versions that are missing as may be on their way."""
        size = sum(self._bytes[p] for p in cut.asked)
        for p in cut.missing:
            if p in cut.asked:
                continue
            size += self._bytes[p]
            if cut.asked and size > ASKED_BYTES:
                return
            self._number += 1
            cut.asked[p] = self._number


def _age(told: ToldVersion) -> tuple[int, Version]:
    """What is told later by a shard is newer; a life that goes on from an older version has undone the others."""
    return told["incarnation"], told["version"]
