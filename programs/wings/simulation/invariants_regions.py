"""The invariants of the program of two levels: those of Decoupled DiLoCo at each level, and the tokens across both.

To its learners a region's syncer is the shard of Decoupled DiLoCo; to the global syncer it is a learner. A
`LevelChecker` shows a checker of one shard the messages of one level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from isthmus.ops.syncer.answer_work import rows_of
from isthmus.programs.program_graph import REGION
from isthmus.programs.wings.simulation.invariants import (
    AccountsChecker,
    AnswersChecker,
    FairnessChecker,
    MergesChecker,
)
from isthmus.programs.wings.simulation.invariants_books_checker import last_books
from isthmus.programs.wings.simulation.invariants_model import (
    BytesChecker,
    HonestChecker,
    ModelChecker,
    Version,
    VersionsChecker,
)
from isthmus.programs.wings.simulation.invariants_recoveries import FinalChecker, KeptWorkChecker
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import LEARNER, MachineOwner, Member
from isthmus.runtime.sim.checkers import Checker, ViolationError
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.incidents import Happened, SharesUnbounded
from isthmus.runtime.supervision.rosters import Row

TOLD_MAX: Final = 3
"""Answers of which one may be in a merge: one in a round, one late, one under way."""
SLOTS_LOOKED_AT: Final = 8
SHARES_TOLERANCE: Final = 1e-6
Tokens: TypeAlias = dict[tuple[int, int], int]
"""Tokens by (slot, incarnation)."""


class LevelChecker(Checker):
    """Shows a checker the items between a region, of so many, and its learners, or, for region None, all others."""

    def __init__(self, inner: Checker, region: int | None, regions: int) -> None:
        self._inner, self._region, self._regions = inner, region, regions

    def _is_shown(self, life: Life, other: Member, edge: EdgePlan) -> bool:
        if {edge.source_role, edge.target_role} != {LEARNER, REGION}:
            return self._region is None
        hosts = [each.replica for each in (life.member, other) if each.replica.role == REGION]
        regions = [each.slot % self._regions for each in hosts]
        return regions == [self._region]

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Show what is of this level."""
        if self._is_shown(life, target, edge):
            self._inner.sent(life, target, edge, item)

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Show what is of this level."""
        if self._is_shown(life, source, edge):
            self._inner.arrived(life, source, edge, item)

    def rostered(self, life: Life, rows: Sequence[Row]) -> None:
        """Show it."""
        self._inner.rostered(life, rows)

    def connected(self, life: Life, peer: Member) -> None:
        """Show it."""
        self._inner.connected(life, peer)

    def began(self, universe: Universe, member: Member) -> None:
        """Show it."""
        self._inner.began(universe, member)

    def happened(self, universe: Universe, happened: Happened) -> None:
        """Show it."""
        self._inner.happened(universe, happened)

    def polled(self, universe: Universe) -> None:
        """Show it."""
        self._inner.polled(universe)

    def finished(self, universe: Universe, home: Home) -> None:
        """Show it."""
        self._inner.finished(universe, home)

    def ended(self, universe: Universe) -> None:
        """Show it."""
        self._inner.ended(universe)


class RegionsChecker(Checker):
    """Every token of a global version was merged in a region first, and once; a region answers with what its own merges
    have, in its present life.

    A version of the global syncer has whole answers: of each slot, its clock moves over the rows of one of them. At the
    end the books agree with the rows in the final versions.
    """

    def __init__(self, regions: int) -> None:
        self._regions = regions
        self._answers: dict[tuple[Member, int], list[list[list[int]]]] = {}
        """The rows of answers that arrived at a life of the global syncer, by fragment."""
        self._clocks: dict[tuple[int, Version], dict[int, tuple[int, int]]] = {}
        self._tokens: dict[tuple[int, Version], Tokens] = {}
        self._newest: dict[tuple[Member, int], Version] = {}
        self._last: dict[int, tuple[int, Version]] = {}
        """Fragment -> the life of the syncer that published it last, and its version."""
        self._within: dict[tuple[Member, int], dict[int, tuple[int, int]]] = {}
        """The clock of a region's life in the last version that it sent a learner, by fragment."""
        self._learned: dict[tuple[Member, int], set[tuple[int, int, int]]] = {}
        """The (slot, incarnation, end) of learners' answers that arrived at a region's life, by fragment."""
        self._unsure: set[int] = set()

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note answers of regions, and those of learners to them."""
        if edge.target_port != "answer":
            return
        if "work" in item:
            self._answers.setdefault((life.member, item["fragment"]), []).append(rows_of(item))
        elif life.member.replica.role == REGION:
            learned = self._learned.setdefault((life.member, item["fragment"]), set())
            learned.update((slot, incarnation, end) for slot, incarnation, _, end, _ in rows_of(item))

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Check answers of regions, and versions of both levels."""
        if edge.source_port == "answer" and "work" in item:
            self._check_answer(life, item)
        elif edge.source_port == "update" and life.member.replica.role == REGION:
            clock = {slot: (incarnation, position) for slot, incarnation, position in item["clock"]}
            self._within[life.member, item["fragment"]] = clock
        elif edge.source_port == "update" and edge.target_port in ("above", "update"):
            self._check_version(life.member, item)

    def _check_answer(self, life: Life, item: Any) -> None:
        region, p, ends = life.member, item["fragment"], dict[int, tuple[int, int]]()
        for slot, incarnation, begin, end, _ in rows_of(item):
            if (incarnation, begin) < ends.get(slot, (incarnation, 0)) or begin >= end:
                raise ViolationError(f"{region} answers with {rows_of(item)} of fragment {p}: rows of a slot overlap")
            ends[slot] = incarnation, end
        clock = self._within.get((region, p), {})
        beyond = {(slot, *reached) for slot, reached in ends.items() if reached > clock.get(slot, (0, 0))}
        learners = [each.replica.slot for each in life.meetings.live.values() if each.replica.role == LEARNER]
        if all((slot - region.replica.slot) % self._regions for slot in learners):
            beyond -= self._learned.get((region, p), set())  # Its last versions went to nobody.
        if beyond:
            raise ViolationError(f"{region} answers with {ends} of fragment {p}; its own version has {clock}")

    def _check_version(self, syncer: Member, item: Any) -> None:
        p, version = item["fragment"], (item["version"][0], item["version"][1])
        clock = {slot: (incarnation, position) for slot, incarnation, position in item["clock"]}
        if version[0] and (syncer.incarnation, version) >= self._last.get(p, (0, (0, 0))):
            self._last[p] = syncer.incarnation, version
        before = self._newest.get((syncer, p))
        if (p, version) in self._clocks:
            if self._clocks[p, version] != clock:
                raise ViolationError(f"{syncer}: version {version} of fragment {p} has another clock")
            self._newest[syncer, p] = max(version, before or version)
            return
        self._newest[syncer, p] = version
        tokens: Tokens = dict(self._tokens.get((p, before), {})) if before else {}
        former = self._clocks.get((p, before), {}) if before else {}
        moved = {slot for slot, reached in clock.items() if reached != former.get(slot)}
        if before is None or version[1] != before[1] + 1:
            self._unsure |= {p} if moved else set()
        else:
            self._add(syncer, p, tokens, former, clock, moved)
        self._clocks[p, version], self._tokens[p, version] = clock, tokens

    def _add(
        self,
        syncer: Member,
        p: int,
        tokens: Tokens,
        former: dict[int, tuple[int, int]],
        clock: dict[int, tuple[int, int]],
        moved: set[int],
    ) -> None:
        """Add the tokens of the answers that a version has: those whose rows end at its clock, and begin behind the
        former one. Of two that do, the later one has all that the other has."""
        for rows in reversed(self._answers.get((syncer, p), [])):
            ends = {slot: (incarnation, end) for slot, incarnation, _, end, _ in rows}
            is_new = all((inc, begin) >= former.get(slot, (0, 0)) for slot, inc, begin, *_ in rows)
            if ends and ends.keys() <= moved and is_new and all(clock[slot] == end for slot, end in ends.items()):
                moved = moved - ends.keys()
                for slot, incarnation, begin, end, _ in rows:
                    tokens[slot, incarnation] = tokens.get((slot, incarnation), 0) + end - begin
        if moved:
            raise ViolationError(f"{syncer}, fragment {p}: the clock moves for {sorted(moved)}, by no whole answer")

    def ended(self, universe: Universe) -> None:
        """Check the last status of the last recorder, if that finished."""
        if (last := last_books(universe)) is None:
            return
        status, life_tokens = last
        for entry in life_tokens:
            p = entry.fragment
            if p in self._unsure or p not in self._last or not status["model_whole"].get(p):
                continue
            truth = self._tokens[p, self._last[p][1]].get((entry.learner, entry.incarnation), 0)
            if truth != entry.merged:
                who = f"learner {entry.learner}#{entry.incarnation}, fragment {p}"
                raise ViolationError(f"{who}: {entry.merged} tokens are said to be in the model, and {truth} are")


class InfluenceChecker(Checker):
    """No owner has more of a merge of regions than it may, by what the answers in it say, and these say it of each
    owner whose learners have work in them, once shares are bounded."""

    def __init__(self, owner_of: Callable[[int], MachineOwner]) -> None:
        self._owner_of, self._was_unbounded = owner_of, False
        self._told: dict[tuple[Member, int, int], list[tuple[int, dict[str, float]]]] = {}
        """When answers of a region's shard about a fragment arrived at a life of a shard, and what they say."""

    def happened(self, universe: Universe, happened: Happened) -> None:
        """Note that shares were not bounded, at some time: all learners were of one."""
        self._was_unbounded |= isinstance(happened.incident, SharesUnbounded)

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note what answers say of owners."""
        if edge.target_port != "answer" or "work" not in item or item["kind"] not in ("merge", "final"):
            return
        owners = {name: share for name, share, _ in item.get("owners", ())}
        bounded = [self._owner_of(slot) for slot, *_ in rows_of(item)]
        missing = {each.name for each in bounded if (each.weight_share_max or 1.0) < 1.0} - owners.keys()
        if missing and not self._was_unbounded:
            raise ViolationError(f"{source} answers with work of {sorted(missing)}, and does not say what they have")
        self._told.setdefault((life.member, item["fragment"], item["slot"]), []).append((life.clock.now(), owners))

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Check the shares of merges: of the answers that may be in one, those that say least count."""
        if edge.source_port != "merged" or item["kind"] not in ("merge", "final") or self._was_unbounded:
            return
        own: dict[str, float] = {}
        for slot, weight in zip(item["voters"], item["weights"], strict=True):
            arrived = self._told.get((life.member, item["fragment"], slot), [])
            # A recorder that was away is told of a merge long after it.
            told = [owners for at, owners in arrived if at <= item["closed_at"]][-TOLD_MAX:]
            for name in {name for each in told for name in each}:
                own[name] = own.get(name, 0.0) + weight * min(each.get(name, 0.0) for each in told)
        for owner in {self._owner_of(slot) for slot in range(SLOTS_LOOKED_AT)}:
            if own.get(owner.name, 0.0) > (owner.weight_share_max or 1.0) + SHARES_TOLERANCE:
                raise ViolationError(f"{life.member}, round {item['round']}: {owner} has {own[owner.name]} of a merge")


def regions_checkers(regions: int, owner_of: Callable[[int], MachineOwner] | None = None) -> list[Checker]:
    """A checker for each invariant, new for each universe of so many regions, in which shares may be bounded."""
    of_shards = (VersionsChecker, BytesChecker, MergesChecker, AnswersChecker, KeptWorkChecker, HonestChecker)
    levels: list[Checker] = [LevelChecker(each(), region, regions) for region in range(regions) for each in of_shards]
    above = (VersionsChecker, BytesChecker, ModelChecker, FairnessChecker, FinalChecker)
    levels += [LevelChecker(each(), None, regions) for each in above]
    bounded: list[Checker] = [] if owner_of is None else [InfluenceChecker(owner_of)]
    return [*levels, AccountsChecker(), RegionsChecker(regions), *bounded]
