"""The invariants of every universe that runs Decoupled DiLoCo: one checker for each.

Checkers see only the messages between hosts, and keep books of their own, so that they share no mistake with the code
that they check. Shards are identified by life: a shard that comes back begins with a version that learners hold, and
merges of its former life beyond that are no longer in the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from isthmus.ops.exchange.paths import PathParts
from isthmus.ops.syncer.answer_work import ranges_of, work_of
from isthmus.programs.engine.recorder.accounts import entries
from isthmus.programs.wings.simulation.invariants_model import BytesChecker, ModelChecker, Version, VersionsChecker
from isthmus.programs.wings.simulation.invariants_recoveries import ASKED_NS
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import LEARNER, ONE_RECORDER, MachineOwner, Member, Replica
from isthmus.runtime.sim.checkers import Checker, ViolationError, is_of_liar
from isthmus.runtime.sim.faults import Forge, Lie
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.incidents import (
    Condemned,
    Ended,
    GivenUp,
    Happened,
    RecorderFailed,
    SharesUnbounded,
)

LEFT_OUT_MAX: Final = 8
"""Merges of a fragment in a row, in calm, without a learner that lives and is connected: four may leave it out, the
next waits for it up to a learned deadline."""
CALM_NS: Final = 3_000_000_000
"""After the last fault: a lost connection is made again within a second, and late messages have arrived."""
WEIGHT_TOLERANCE: Final = 1e-9


@dataclass(slots=True)
class _Books:
    """Books of one fragment in one life of a shard.

    The newest version and its clock; all versions that it sent (`versions`); answers that arrived while their learner
    was live; voters and their weights by version; and (time, slot, version) of each version that a slot gave to the
    shard while it recovered.
    """

    newest: Version = (0, 0)
    clock: dict[int, tuple[int, int]] = field(default_factory=dict)
    versions: set[Version] = field(default_factory=set)
    answers: dict[tuple[int, int, int], list[Any]] = field(default_factory=dict)
    voters: dict[Version, dict[int, float]] = field(default_factory=dict)
    recovered: list[tuple[int, int, Version]] = field(default_factory=list)
    held: Version = (0, 0)
    closed_at: int = 0


def _its_own(slot: int) -> MachineOwner:
    return MachineOwner(f"{LEARNER} {slot}")


class MergesChecker(Checker):
    """Every merge is of valid answers, and a shard that comes back loses no version.

    Merged answers arrived from live learners, once each, in slot order, on bases that the shard published, with tokens
    that are not in the model yet, weighted by tokens x tokens / steps; the clock of the new version agrees. A shard
    that comes back continues from a version no older than the newest it was given up to the holders' newest, and than
    the one that half of the answering learners have reached.
    """

    def __init__(
        self,
        owner_of: Callable[[int], MachineOwner] = _its_own,
        site_of: Callable[[int], tuple[str, float]] | None = None,
        *,
        sums: bool = False,
    ) -> None:
        self._sums = sums
        self._books: dict[tuple[Member, int], _Books] = {}
        self._owner_of, self._site_of = owner_of, site_of
        self._was_unbounded = False

    def happened(self, universe: Universe, happened: Happened) -> None:
        """Note that shares were not bounded, at some time."""
        self._was_unbounded |= isinstance(happened.incident, SharesUnbounded)

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note the answers that reach a shard from a learner that is live for it."""
        if edge.target_port != "answer" or life.meetings.live.get(source.replica) != source:
            return
        if (item["slot"], item["incarnation"]) != (source.replica.slot, source.incarnation):
            return
        books = self._of(life, item["fragment"])
        if item["kind"] == "recover" and item["base"] is not None:
            books.recovered.append((life.clock.now(), item["slot"], (item["base"][0], item["base"][1])))
        # The clock ends at the last life that trained any of it.
        own = [item["incarnation"], item["begin"], item["end"], item["steps"]]
        *former, (incarnation, begin, end, steps) = ranges_of(item) or [own]
        vote = {**item, "incarnation": incarnation, "begin": begin, "end": end, "steps": steps, "former": former}
        books.answers.setdefault((item["slot"], incarnation, end), []).append(vote)

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Compare each new version with the one before, and with its reported voters."""
        if edge.source_port == "merged" and item["version"] is not None and item["kind"] in ("merge", "final"):
            voters = list(item["voters"])
            if voters != sorted(set(voters)):
                raise ViolationError(f"{life.member}, round {item['round']}: {voters} are not in slot order, once each")
            weights = dict(zip(voters, item["weights"], strict=True))
            self._of(life, item["fragment"]).voters[item["version"][0], item["version"][1]] = weights
        elif edge.source_port == "pull" and item["kind"] == "recover":
            held = max(((epoch, count) for epoch, count, *_ in item["known"]), default=(0, 0))
            self._of(life, item["fragment"]).held = held
        elif edge.source_port == "merged" and item["kind"] == "recover":
            self._of(life, item["fragment"]).closed_at = item["closed_at"]
        elif edge.source_port == "update":
            self._published(life, item)

    def _of(self, life: Life, fragment: int) -> _Books:
        return self._books.setdefault((life.member, fragment), _Books())

    def _published(self, life: Life, update: Any) -> None:
        books, version = self._of(life, update["fragment"]), (update["version"][0], update["version"][1])
        clock = {slot: (incarnation, position) for slot, incarnation, position in update["clock"]}
        doing = f"{life.member}, fragment {update['fragment']}, version {version}"
        if version == books.newest and clock != books.clock:
            raise ViolationError(f"{doing}: clock {clock} where it was {books.clock}")
        if update["kind"] == "recover" and not books.versions:
            # Once per slot: an answer to a former life of the shard may arrive before the one to this life.
            newest_of = {slot: each for at, slot, each in books.recovered if at <= books.closed_at}
            versions = sorted(newest_of.values(), reverse=True)
            sure = [versions[(len(versions) - 1) // 2]] if versions else [version]
            newest = max(sure + [each for each in versions if each <= books.held])
            if version < newest:
                raise ViolationError(f"{doing}: it goes on from there, and was given {newest}")
        if books.versions and version[1] == books.newest[1] + 1:
            changed = [slot for slot in sorted(clock) if clock[slot] != books.clock.get(slot)]
            voters = books.voters.get(version)
            if voters is not None and not set(voters) <= set(changed):
                raise ViolationError(f"{doing}: {voters} voted, and the clock changes for {changed}")
            candidates = {slot: self._moved(books, slot, clock[slot], doing) for slot in changed}
            self._check_weights(candidates, voters or {}, doing)
        books.newest, books.clock = version, clock
        books.versions.add(version)

    def _check_weights(self, candidates: Mapping[int, Sequence[Any]], voters: Mapping[int, float], doing: str) -> None:
        """Compare the weights of a merge with those of its answers, if these are unambiguous."""
        weights = {}
        for slot, votes in candidates.items():
            tokens = {work_of(vote) for vote in votes}
            if len(tokens) != 1:
                return
            [(count, steps)] = tokens
            weights[slot] = count * count / steps if steps else 0.0
        if self._site_of is not None:
            weights = _by_site(weights, self._site_of)
        owners = {slot: self._owner_of(slot) for slot in weights}
        expected = [_capped(weights, owners)]
        if self._was_unbounded:  # A shard learns of it a little later.
            expected.append(
                _capped(weights, {slot: owner._replace(weight_share_max=1.0) for slot, owner in owners.items()})
            )
        # What an answer whose values did not come would have had, no other one has where a rule divides.
        divides = self._site_of is not None or any((owner.weight_share_max or 1.0) < 1.0 for owner in owners.values())
        may_be_less = self._sums and divides
        for slot, weight in voters.items():
            apart = [weight - each[slot] for each in expected]
            if all(each > WEIGHT_TOLERANCE or (each < -WEIGHT_TOLERANCE and not may_be_less) for each in apart):
                raise ViolationError(f"{doing}: slot {slot} has the weight {weight}, not {expected[0][slot]}")

    def _moved(self, books: _Books, slot: int, to: tuple[int, int], doing: str) -> list[Any]:
        """The candidate answers, one of which moved the clock of a slot."""
        incarnation, position = books.clock.get(slot, (0, 0))
        sent = books.answers.get((slot, *to), [])
        if to[0] < incarnation:
            raise ViolationError(f"{doing}: incarnation {to[0]} of slot {slot} is merged after {incarnation}")
        if not sent:
            raise ViolationError(f"{doing}: slot {slot} is merged up to {to}; no live learner sent such an answer")
        possible = [vote for vote in sent if vote["base"] is not None and tuple(vote["base"]) in books.versions]
        if not possible:
            raise ViolationError(f"{doing}: slot {slot} is merged on version {sent[0]['base']}, of {books.versions}")
        floor = position if to[0] == incarnation else 0
        if all(vote["begin"] < floor for vote in possible):
            twice = f"tokens {possible[0]['begin']} to {min(floor, to[1])} of slot {slot} are merged twice"
            raise ViolationError(f"{doing}: {twice}")
        return [vote for vote in possible if vote["begin"] >= floor]


class AnswersChecker(Checker):
    """A pull is answered after the updates that arrived before it from the same life of the shard.

    The base of an answer is never older than the newest of them. (Two kinds of updates do not count, unless the learner
    has sampled them: those of a former life, dropped with it; and codes that others replace, with all that follow.)
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[Member, Member, int], Version] = {}
        self._pulled: dict[tuple[Member, int, int], Version] = {}
        self._codes: dict[tuple[Member, int], dict[Version, Version]] = {}
        self._reached: dict[tuple[Member, int], Version] = {}
        self._places: dict[tuple[Member, Member, int], tuple[int, Version]] = {}
        self._shards: dict[tuple[Member, int], int] = {}
        """The newest life of the shard of which an update arrived."""
        self._answered: dict[tuple[Member, int], Version] = {}
        """The base of a learner's last answer: what it has sampled."""
        self._liars: Mapping[Replica, Sequence[Forge]] = {}
        self._is_in_turns = False
        """Whether the program is in lock-step, where copies are for learners that hold nothing yet."""

    def began(self, universe: Universe, member: Member) -> None:
        """Keep the injector's record of forgeries."""
        self._liars = universe.injector.forgeries

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note the updates that arrived before each pull."""
        if edge.target_port == "update" and "version" in item:
            key = life.member, source, item["fragment"]
            if "place" in item and source.incarnation > self._shards.get((life.member, item["fragment"]), 0):
                self._begin(life, source, item["fragment"])
            if "base" in item:
                self._displace(life, source, item)
            self._newest[key] = max(self._newest.get(key, (0, 0)), self._reach(life, item))
        elif edge.target_port == "pull":
            self._is_in_turns |= "steps" in item
            newest = self._newest.get((life.member, source, item["fragment"]), (0, 0))
            self._pulled.setdefault((life.member, item["fragment"], item["round"]), newest)

    def _begin(self, life: Life, shard: Member, fragment: int) -> None:
        """Forget updates of the shard's former life that the learner may not have sampled before they were dropped."""
        of = life.member, fragment
        self._shards[of] = shard.incarnation
        self._codes.pop(of, None)
        self._reached[of] = self._answered.get(of, (0, 0))

    def _displace(self, life: Life, source: Member, item: Any) -> None:
        """Forget codes that the item replaces, if the learner may not have sampled them yet."""
        place, now = (life.member, source, item["place"]), life.true_now()
        came_at, base = self._places.get(place, (-ASKED_NS, (0, 0)))
        self._places[place] = now, (item["base"][0], item["base"][1])
        if now - came_at < ASKED_NS:
            of = life.member, item["fragment"]
            self._codes.get(of, {}).pop(base, None)
            self._reached[of] = min(self._reached.get(of, (0, 0)), base)
            self._newest.pop((life.member, source, item["fragment"]), None)

    def _reach(self, life: Life, item: Any) -> Version:
        """The newest version that can be adopted after an item: codes need the version before them."""
        of, version = (life.member, item["fragment"]), (item["version"][0], item["version"][1])
        codes, reached = self._codes.setdefault(of, {}), self._reached.get(of, (0, 0))
        if item["kind"] == "copy" and "frame" not in item and self._is_in_turns and reached > (0, 0):
            return version
        if "base" in item:
            codes[item["base"][0], item["base"][1]] = version
        else:
            reached = max(reached, version)
        while reached in codes:
            reached = codes[reached]
        self._reached[of] = reached
        return reached if "place" in item or "frame" in item else version

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Compare the base of an answer."""
        if edge.source_port == "answer" and item["base"] is not None:
            self._answered[life.member, item["fragment"]] = item["base"][0], item["base"][1]
            newest = self._pulled.get((life.member, item["fragment"], item["round"]), (0, 0))
            # A forger that reports no steps is left out of turns: its gate goes ahead without their updates.
            is_left_out = self._is_in_turns and life.member.replica in self._liars
            if (item["base"][0], item["base"][1]) < newest and not is_left_out:
                doing = f"{life.member} answers round {item['round']} of fragment {item['fragment']}"
                raise ViolationError(f"{doing} on version {item['base']}, though {newest} had come before the pull")


class AccountsChecker(Checker):
    """The account of every fragment adds up to all tokens that the learner trained, in every report.

    A book only grows, so an error in it lasts until the next report. Of a model made of modules, the account of a
    fragment that a learner's path has not is empty.
    """

    def __init__(self, paths: PathParts | None = None) -> None:
        self._paths = paths

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Check reports."""
        if edge.source_port == "report" and item["phase"] != "ready":
            for fragment, account in enumerate(item["accounts"]):
                has = self._paths is None or self._paths.has(life.member.replica.slot, fragment)
                if sum(account) != (item["tokens"] if has else 0) or min(account) < 0:
                    actual = f"{account} (merged, overlapped, refused, lost, pending) of {item['tokens']} trained"
                    raise ViolationError(f"{life.member}, fragment {fragment}: {actual}")


class FairnessChecker(Checker):
    """In calm, a learner that steps is merged again within a bounded number of rounds of each fragment."""

    def __init__(self) -> None:
        self._universe: Universe | None = None
        self._left_out: dict[tuple[int, int], int] = {}
        self._rounds: set[tuple[Member, int]] = set()

    def polled(self, universe: Universe) -> None:
        """Know the universe."""
        self._universe = universe

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Count the rounds without each learner."""
        if edge.source_port != "merged" or item["kind"] != "merge" or (life.member, item["round"]) in self._rounds:
            return
        self._rounds.add((life.member, item["round"]))
        universe, fragment = self._universe, item["fragment"]
        age = life.clock.now() - item["closed_at"]  # A recorder that comes back is sent the merges of its absence.
        is_calm = universe is not None and universe.calm_ns - age > CALM_NS
        for slot in {*item["voters"], *item["left_out"]}:
            is_missing = slot not in item["voters"] and is_calm
            count = self._left_out[fragment, slot] = self._left_out.get((fragment, slot), 0) + 1 if is_missing else 0
            if count > LEFT_OUT_MAX:
                raise ViolationError(f"{life.member} left slot {slot} out of {count} merges of fragment {fragment}")


def _by_site(weights: Mapping[int, float], site_of: Callable[[int], tuple[str, float]]) -> dict[int, float]:
    """The weights of slots, of which those of a site together are in proportion to its own."""
    together: dict[str, float] = defaultdict(float)
    for slot, weight in weights.items():
        together[site_of(slot)[0]] += weight
    return {
        slot: weight * site_of(slot)[1] / together[site_of(slot)[0]] if weight else 0.0
        for slot, weight in weights.items()
    }


def _capped(weights: Mapping[int, float], owners: Mapping[int, MachineOwner]) -> dict[int, float]:
    """The shares min(most, factor * weight), by owner, whose sum is 1, or as close to that as it can be."""
    most = {owner.name: owner.weight_share_max or 1.0 for owner in owners.values()}
    of_owner = {name: sum(weights[slot] for slot in weights if owners[slot].name == name) for name in most}
    low, high = 0.0, 1.0 / min(filter(None, weights.values()), default=1.0)
    for _ in range(200):
        factor = (low + high) / 2
        is_less = sum(min(most[name], factor * each) for name, each in of_owner.items()) < 1.0
        low, high = (factor, high) if is_less else (low, factor)
    part = {name: min(most[name], high * each) / each if each else 0.0 for name, each in of_owner.items()}
    return {slot: each * part[owners[slot].name] for slot, each in weights.items()}


class PathsChecker(Checker):
    """Of a model made of modules, a fragment reaches, and is merged of, learners only whose path has it.

    A first version may be of another learner.
    """

    def __init__(self, paths: PathParts) -> None:
        self._paths = paths

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Check updates to learners, their answers, and the voters of merges."""
        if edge.source_port in ("update", "copy", "frames") and target.replica.role == LEARNER:
            self._check(target.replica.slot, item["fragment"], f"{life.member} sends an update")
        elif edge.source_port == "answer" and item["kind"] not in ("initial", "recover"):
            self._check(life.member.replica.slot, item["fragment"], f"{life.member} answers")
        elif edge.source_port == "merged" and item["kind"] not in ("initial", "recover"):
            for slot in item["voters"]:
                self._check(slot, item["fragment"], f"{life.member} merges")

    def _check(self, slot: int, fragment: int, doing: str) -> None:
        if not self._paths.has(slot, fragment):
            raise ViolationError(f"{doing}: fragment {fragment} is not of the path of slot {slot}")


def checkers(
    owner_of: Callable[[int], MachineOwner] = _its_own,
    paths: PathParts | None = None,
    site_of: Callable[[int], tuple[str, float]] | None = None,
    *,
    sums: bool = False,
) -> list[Checker]:
    """A checker for each invariant, new for each universe; `owner_of` a slot, with its largest share of a merge, and
    `site_of` it, with its weight, where sites have weights of their own; `sums`: shards keep sums."""
    classes = (VersionsChecker, BytesChecker, AnswersChecker, FairnessChecker, ModelChecker)
    of_paths = [] if paths is None else [PathsChecker(paths)]
    return [
        MergesChecker(owner_of, site_of, sums=sums),
        AccountsChecker(paths),
        *of_paths,
        *(each() for each in classes),
    ]


class LiesChecker(Checker):
    """A machine that lies harms its own share: lies end no run, and no life elsewhere, and lose no token of the others.

    Harm is an end of the run that its recorder did not reach, and, where nothing but lies happened, the end of a life
    on another machine, or a lost token of its learner.
    """

    def happened(self, universe: Universe, happened: Happened) -> None:
        """Check the ends of lives."""
        replica, is_end = happened.member.replica, isinstance(happened.incident, Condemned | Ended | GivenUp)
        # A fault counts as happened after what it does: until then the replicas that it touches tell of it.
        is_struck = is_of_liar(universe, replica) or replica in universe.injector.touched
        if is_end and _are_alone(universe) and not is_struck:
            raise ViolationError(f"{happened.member} ends by a lie: {happened.incident}")

    def finished(self, universe: Universe, home: Home) -> None:
        """Compare the outcome with what the recorder has reached."""
        if not universe.injector.liars:
            return
        recorder = universe.last(ONE_RECORDER)
        status = {} if recorder is None else recorder.host.published.get("record", {})
        if home.outcome == "done" and status.get("phase") != "done":
            share = f"{status.get('tokens', 0)} of {status.get('tokens_budget')} tokens"
            raise ViolationError(f"the run is over as 'done', and its recorder had come to {share}")
        # The recorder counts what was trained: a machine may end its own learner, whose last tokens nobody knows of.
        is_counted = isinstance(home.failure, RecorderFailed)
        if _are_alone(universe) and home.outcome != "done" and not is_counted:
            raise ViolationError(f"the run is over as {home.outcome!r} by a lie: {home.failure}")

    def ended(self, universe: Universe) -> None:
        """Check the tokens of the others."""
        recorder = universe.last(ONE_RECORDER)
        if recorder is None or not _are_alone(universe):
            return
        status = recorder.host.published.get("record", {})
        for entry in entries(status, len(status["merged_tokens"])):
            if entry.lost and not is_of_liar(universe, Replica(LEARNER, entry.learner)):
                raise ViolationError(f"learner {entry.learner}#{entry.incarnation} lost {entry.lost} tokens by a lie")


def _are_alone(universe: Universe) -> bool:
    """Whether lies are the only faults that have happened."""
    happened = [fault for fault, _ in universe.injector.happened]
    return bool(happened) and all(isinstance(fault, Lie) for fault in happened)
