"""The invariants where shards come back, learners hold lost versions, and learners join late: a checker for each.

Like those of `invariants` they see only the messages between hosts, and keep books of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from isthmus.ops.exchange.paths import PathParts
from isthmus.ops.syncer.pacer import RENEWAL_NS, RENEWED_AT_ONCE
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import Member
from isthmus.runtime.sim.checkers import Checker, ViolationError
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import Universe

ASKED_NS: Final = 200_000_000
"""Nanoseconds after which a pacer has taken in an item: it fires within 8 ms, within 80 ms on a slow host."""
RECOVERY_NS: Final = 900_000_000
"""A second, less the time of the opening from pacer to pull."""
PENDING: Final = 4
"""Index in the account of a fragment, after merged, overlapped, refused and lost."""


class _Heard(NamedTuple):
    """A learner's progress as a shard heard it, and the time by the shard's clock."""

    at: int
    progress: Any


@dataclass(slots=True)
class _Asking:
    """A round as the shard pulls it: fragment, kind, members asked first and last, and members that answered.

    Times are of the shard's clock.
    """

    fragment: int
    kind: str
    opened_at: int
    members: set[tuple[int, int]] = field(default_factory=set)
    first_members: set[tuple[int, int]] = field(default_factory=set)
    answered: set[tuple[int, int]] = field(default_factory=set)
    is_turn: bool = False
    """Whether the program is in lock-step."""


class _AskingChecker(Checker):
    """Tracks the rounds that each life of a shard pulls, and the learners that it has heard."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[Member, int], _Asking] = {}
        self._first: dict[tuple[Member, Member], _Heard] = {}
        self._phases: dict[tuple[Member, Member], _Heard] = {}
        self._judged: set[tuple[Member, int]] = set()

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note the first progress that a shard hears from each learner, and the first in its present phase."""
        if edge.target_port == "progress" and "phase" in item and life.member.replica.role == "syncer":
            heard, key = _Heard(life.clock.now(), item), (life.member, source)
            self._first.setdefault(key, heard)
            if key not in self._phases or self._phases[key].progress["phase"] != item["phase"]:
                self._phases[key] = heard
        elif edge.target_port == "answer" and (life.member, item["round"]) in self._rounds:
            self._rounds[life.member, item["round"]].answered.add((source.replica.slot, source.incarnation))

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Note rounds as they are pulled; judge each when its merge is reported."""
        if edge.source_port == "pull":
            asking = self._rounds.get((life.member, item["round"]))
            members = {(slot, incarnation) for slot, incarnation in item["members"]}
            if asking is None:
                asking_now = _Asking(item["fragment"], item["kind"], life.clock.now(), members, members)
                asking_now.is_turn = "steps" in item
                self._rounds[life.member, item["round"]] = asking_now
            else:
                asking.members = members
        elif edge.source_port == "merged":
            closed = self._rounds.get((life.member, item["round"]))
            if closed is not None and (life.member, item["round"]) not in self._judged:
                self._judged.add((life.member, item["round"]))
                self.judge(life, closed, item)

    def live_learners(self, life: Life) -> list[Member]:
        """The learners that are live for a shard."""
        return [member for member in life.meetings.live.values() if member.replica.role == "learner"]

    def judge(self, life: Life, asking: _Asking, merging: Any) -> None:
        """Object to a round that was closed."""


class NewestChecker(_AskingChecker):
    """A shard that comes back continues from the newest version that can be reached.

    It asks all learners that have reported one, and waits at most a second for the live ones. (`MergesChecker` checks
    that it takes the newest version given by then.)
    """

    def judge(self, life: Life, asking: _Asking, merging: Any) -> None:
        """Check which learners a shard that came back asked and waited for."""
        if asking.kind != "recover" or merging["version"] is None:
            return
        doing = f"{life.member} recovers fragment {asking.fragment}"
        waited = merging["closed_at"] - asking.opened_at
        for member in self.live_learners(life):
            key = member.replica.slot, member.incarnation
            heard = self._first.get((life.member, member))
            is_holding = heard is not None and any(heard.progress["epochs"][asking.fragment :][:1])
            is_old = heard is not None and asking.opened_at - heard.at > ASKED_NS
            if is_holding and is_old and key not in asking.first_members:
                raise ViolationError(f"{doing} without asking {member}, which had told that it holds it")
            if key in asking.first_members and key not in asking.answered and waited < RECOVERY_NS:
                raise ViolationError(f"{doing} after {waited / 1e9:.3f} s, without waiting for {member}, which lives")


def _renewal_ns(members: int) -> int:
    """For how long a round of so many is not renewed for whoever comes."""
    return members * RENEWAL_NS if members > RENEWED_AT_ONCE else 0


class FinalChecker(_AskingChecker):
    """A learner that joins late is in the final round.

    A learner that steps, and that a shard has heard of before it closed the last round of a fragment, was asked for its
    work. In lock-step the last turns are of the learners present when they were opened: one that begins or comes back
    later takes part from the next turn on, and there is none. Of a model made of modules, its path has the fragment.
    """

    def __init__(self, paths: PathParts | None = None) -> None:
        super().__init__()
        self._paths = paths

    def judge(self, life: Life, asking: _Asking, merging: Any) -> None:
        """Check which learners the last round of a fragment left out."""
        if asking.kind != "final" or asking.is_turn or not asking.members:  # Without members it is overdue.
            return
        for member in self.live_learners(life):
            heard = self._phases.get((life.member, member))
            if heard is None or heard.progress["phase"] == "ready":
                continue
            if merging["closed_at"] - heard.at <= ASKED_NS + _renewal_ns(len(asking.members)):
                continue
            has = self._paths is None or self._paths.has(member.replica.slot, asking.fragment)
            if has and (member.replica.slot, member.incarnation) not in asking.members:
                error = f"{life.member} ends fragment {asking.fragment} without {member}"
                raise ViolationError(f"{error}, of which it knew for {(merging['closed_at'] - heard.at) / 1e9:.3f} s")


class KeptWorkChecker(Checker):
    """Work since a version is kept as long as the learner holds that version.

    The books of its tokens are closed, and its answers begin anew, only where it adopts a newer version, where its own
    answer was refused, where the version is the final one, or where an earlier life had answered, and it adopts the
    result some steps later.
    """

    def __init__(self) -> None:
        self._refused: set[tuple[Member, int, tuple[int, int]]] = set()
        self._closed: dict[tuple[Member, int], tuple[tuple[int, int], int]] = {}
        self._begun: dict[tuple[Member, int], tuple[tuple[int, int], int]] = {}

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note learners that have to begin again from a version."""
        me = [life.member.replica.slot, life.member.incarnation]
        if edge.target_port == "update" and (me in item["refused"] or item["kind"] == "final"):
            self._refused.add((life.member, item["fragment"], (item["version"][0], item["version"][1])))
        if edge.target_port == "restored" and item["own"] is not None:
            for p, (epoch, count, due, _) in enumerate(item["own"]["standings"]):
                if due:
                    self._refused.add((life.member, p, (epoch, count)))

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Compare each report with the one before, and each answer; with the final version the books are closed for
        good, whether it is newer or not."""
        if edge.source_port == "report" and item["phase"] == "stepping":
            for fragment, account in enumerate(item["accounts"]):
                version = (item["versions"][fragment][0], item["versions"][fragment][1])
                self._compare(self._closed, life, fragment, version, sum(account[:PENDING]), "closes its books")
        elif edge.source_port == "answer" and item["base"] is not None and item["kind"] in ("merge", "final"):
            version = (item["base"][0], item["base"][1])
            self._compare(self._begun, life, item["fragment"], version, item["begin"], "begins anew")

    def _compare(
        self,
        counts: dict[tuple[Member, int], tuple[tuple[int, int], int]],
        life: Life,
        fragment: int,
        version: tuple[int, int],
        count: int,
        does: str,
    ) -> None:
        before = counts.get((life.member, fragment))
        is_refused = (life.member, fragment, version) in self._refused
        if before is not None and before[0] == version and before[1] != count and not is_refused:
            error = f"{life.member} {does} at {count} tokens of fragment {fragment}, {before[1]} before"
            raise ViolationError(f"{error}, and holds version {version} as before: what it had trained is lost")
        if before is None or before[0] <= version:
            counts[life.member, fragment] = version, count


class CountedChecker(Checker):
    """No answer counts twice.

    A slot's merged tokens, as its shard reports them, grow by the tokens of one answer of that slot, and only where it
    is among the voters.
    """

    def __init__(self) -> None:
        self._ranges: dict[tuple[Member, int, int], set[int]] = {}
        self._merged: dict[tuple[Member, int], tuple[int, dict[tuple[int, int], int]]] = {}
        self._rounds: set[tuple[Member, int]] = set()

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note the token counts of each slot's answers."""
        if edge.target_port == "answer":
            key = life.member, item["fragment"], source.replica.slot
            ranges = self._ranges.setdefault(key, set())
            ranges.add(item["end"] - item["begin"])
            ranges.update(end - begin for _, begin, end, _ in item.get("former", ()))

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Compare the merged tokens with those of the merge before."""
        if edge.source_port != "merged" or item["version"] is None or (life.member, item["round"]) in self._rounds:
            return
        self._rounds.add((life.member, item["round"]))
        place = life.member, item["fragment"]
        count, now = item["version"][1], {(slot, life): tokens for slot, life, tokens in item["merged_tokens"]}
        last, before = self._merged.get(place, (None, {}))
        self._merged[place] = count, now
        if last is None or count != last + 1:
            return  # The merges between were not reported: there was no recorder.
        for (slot, incarnation), tokens in now.items():
            more = tokens - before.get((slot, incarnation), 0)
            expected = self._ranges.get((*place, slot), set()) if slot in item["voters"] else {0}
            if more not in expected and more:
                error = f"{life.member}, round {item['round']}: {more} more tokens of slot {slot} are merged"
                raise ViolationError(f"{error}; its answers have {sorted(expected)}")


class PositionsChecker(Checker):
    """No batch is merged twice.

    For each slot, the batches of a life in any fragment of the last model lie behind those of earlier lives in all
    fragments. `merged` is the result: the range of batches of each slot and incarnation. Positions are those stated in
    answers and votes.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[int, int, int, int], _Batches] = {}
        self._models: dict[tuple[int, tuple[int, int]], dict[tuple[int, int], _Batches]] = {}
        self._clocks: dict[tuple[int, tuple[int, int]], dict[int, tuple[int, int]]] = {}
        self._newest: dict[tuple[Member, int], tuple[int, int]] = {}
        self._votes: dict[int, dict[tuple[int, int], _Batches]] = {}
        self._summed: list[tuple[tuple[int, int], _Batches]] = []
        self._calls: set[int] = set()
        self.merged: dict[tuple[int, int], _Batches] = {}

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note the batches of each answer and each vote."""
        if edge.target_port not in ("answer", "vote") or item.get("kind") in ("initial", "recover"):
            return
        lives, end = (item["slot"], item["incarnation"]), dict(item["positions"])[item["slot"]]
        if edge.target_port == "vote":
            self._votes.setdefault(item["round"], {})[lives] = _Batches(end - 1, end)
        else:
            self._answers[item["fragment"], *lives, item["end"]] = _Batches(end - item["steps"], end)

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Note the batches in each mean, and in each version when it is first published."""
        if edge.source_port == "update":
            self._published(life.member, item)
        elif edge.source_port == "call" and item["mean"] is not None and item["round"] not in self._calls:
            self._calls.add(item["round"])
            votes = self._votes.get(item["round"] - 1, {})
            self._summed += [((slot, life), votes[slot, life]) for slot, life in item["voters"]]

    def _published(self, shard: Member, update: Any) -> None:
        p, version = update["fragment"], (update["version"][0], update["version"][1])
        before = self._newest.get((shard, p))
        if version[0]:
            self._newest[shard, p] = version
        clock = {slot: (incarnation, position) for slot, incarnation, position in update["clock"]}
        if not version[0] or (p, version) in self._models:
            return
        base = (p, before if before is not None else version)
        model, former = dict(self._models.get(base, {})), self._clocks.get(base, {})
        for slot, moved in clock.items():
            batches = self._answers.get((p, slot, *moved))
            if moved != former.get(slot) and batches is not None:
                model[slot, moved[0]] = batches.beside(model.get((slot, moved[0])))
        self._models[p, version], self._clocks[p, version] = model, clock

    def ended(self, universe: Universe) -> None:
        """Compare the lives of each slot."""
        last = {p: shard for shard, p in sorted(self._newest, key=lambda of: of[0].incarnation)}
        models = [each for p, shard in last.items() for each in self._models[p, self._newest[shard, p]].items()]
        for lives, batches in [*models, *self._summed]:
            self.merged[lives] = batches.beside(self.merged.get(lives))
        end: dict[int, int] = {}
        for (slot, incarnation), batches in sorted(self.merged.items()):
            if batches.begin < end.get(slot, 0):
                error = f"learner/{slot}#{incarnation} has trained from batch {batches.begin} on what is merged"
                raise ViolationError(f"{error}; lives before it up to batch {end[slot]}")
            end[slot] = batches.end


class _Batches(NamedTuple):
    """A range of positions, without `end`."""

    begin: int
    end: int

    def beside(self, other: _Batches | None) -> _Batches:
        """The smallest range that contains both."""
        return self if other is None else _Batches(min(self.begin, other.begin), max(self.end, other.end))


def recovery_checkers(paths: PathParts | None = None) -> list[Checker]:
    """A checker for each invariant, new for each universe."""
    return [NewestChecker(), FinalChecker(paths), KeptWorkChecker(), CountedChecker(), PositionsChecker()]
