"""The invariants of the books in every universe: they agree with each other, with all messages, and with the tapes.

The checker keeps its own count of the tokens in the model: every published version has the tokens of the answers that
moved its clock, on top of those of the version before. It shares nothing with the books but the contents of the
answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from isthmus.ops.syncer.merge import ranges_of
from isthmus.programs.books.balance import Entry, books, entries
from isthmus.programs.books.tapes import contradictions, of_lives, taped_of
from isthmus.runtime.graph.plans import EdgePlan, Plan
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim import Checker, ViolationError
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import Universe

RECORDER: Final = Replica("recorder", 0)
DIFFERENCES_SHOWN: Final = 3
Version = tuple[int, int]
Model = Counter[tuple[int, int]]
"""Tokens by (slot, incarnation)."""


class BooksChecker(Checker):
    """At the end of a run learners and shards agree about what became of every token, what is said to be in the model
    is in it, and of a learner that is there nobody has heard more than it says itself."""

    def __init__(self) -> None:
        self._answers: dict[tuple[Member, int, int, int, int], set[int]] = {}
        self._former: dict[tuple[Member, int, int, int, int, int], int] = {}
        """Of the same answers, how many tokens of each life before are in them."""
        self._models: dict[tuple[int, Version], Model] = {}
        self._clocks: dict[tuple[int, Version], dict[int, tuple[int, int]]] = {}
        self._newest: dict[tuple[Member, int], Version] = {}
        self._unsure: set[int] = set()
        self.merged: dict[int, Model] = {}

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note from where to where each answer goes that reaches a shard."""
        if edge.target_port == "answer":
            own = [item["incarnation"], item["begin"], item["end"], item["steps"]]
            *former, (incarnation, begin, end, _) = ranges_of(item) or [own]
            key = life.member, item["fragment"], item["slot"], incarnation, end
            self._answers.setdefault(key, set()).add(begin)
            self._former |= {(*key, of): last - first for of, first, last, _ in former}

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Count what is in each version that is published for the first time."""
        if edge.source_port != "update":
            return
        p, version = item["fragment"], (item["version"][0], item["version"][1])
        before = self._newest.get((life.member, p))
        self._newest[life.member, p] = version
        clock = {slot: (incarnation, position) for slot, incarnation, position in item["clock"]}
        if (p, version) in self._models:
            return
        base = (p, before) if before is not None else None
        if base is None and version[1]:
            self._unsure.add(p)  # It goes on from a version that nobody was ever sent.
        model = Counter(self._models.get(base, {})) if base else Model()
        former = self._clocks.get(base, {}) if base else {}
        for slot, moved in clock.items():
            if moved != former.get(slot):
                model[slot, moved[0]] += self._range(life.member, p, slot, moved, former.get(slot, (0, 0)))
                for incarnation in range(1, moved[0]):
                    model[slot, incarnation] += self._former.get((life.member, p, slot, *moved, incarnation), 0)
        self._models[p, version], self._clocks[p, version] = model, clock

    def _range(self, shard: Member, p: int, slot: int, to: tuple[int, int], since: tuple[int, int]) -> int:
        floor = since[1] if since[0] == to[0] else 0
        begins = {each for each in self._answers.get((shard, p, slot, *to), ()) if each >= floor}
        if len(begins) != 1:
            self._unsure.add(p)
        return to[1] - max(begins, default=to[1])

    def ended(self, universe: Universe) -> None:
        """Look at what the last recorder published, if it came to its end."""
        last = universe.last(RECORDER)
        status = {} if last is None else last.host.published.get("record", {})
        if universe.outcome not in ("done", "stopped") or status.get("phase") != "done":
            return
        found = entries(status, len(status["merged_tokens"]))
        differences = books(status, found, None, {})["differences"]
        if differences:
            raise ViolationError(f"the books disagree, {len(differences)} times: {differences[:DIFFERENCES_SHOWN]}")
        self._check_merged(status, found)

    def _check_merged(self, status: dict[str, Any], found: list[Entry]) -> None:
        """Compare what is said to be in the model with what is."""
        last = {p: shard for shard, p in sorted(self._newest, key=lambda of: of[0].incarnation)}
        for p, shard in last.items():
            self.merged[p] = self._models[p, self._newest[shard, p]]
        for entry in found:
            if entry.fragment in self._unsure or not status["model_whole"].get(entry.fragment):
                continue
            truth = self.merged.get(entry.fragment, Model())[entry.learner, entry.incarnation]
            if entry.merged != truth:
                who = f"learner {entry.learner}#{entry.incarnation}, fragment {entry.fragment}"
                raise ViolationError(f"{who}: {entry.merged} tokens are said to be in the model, and {truth} are")


class TapesChecker(Checker):
    """Every merge that a shard tells of merged the tokens of the answers on its tape; and where the recorder came to
    its end, its books have the steps and the merges of the tapes."""

    def __init__(self) -> None:
        self._mergings: dict[tuple[int, int, int], Mapping[str, Any]] = {}

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Note what shards say of merges."""
        if edge.source_port == "merged":
            self._mergings[item["fragment"], item["epoch"], item["round"]] = item

    def objection(self, plans: Mapping[str, Plan], tapes: Mapping[str, bytes], status: Mapping[str, Any]) -> str | None:
        """What is wrong, in words, in a universe that is over; `status` is what the recorder said last."""
        summary: dict[str, Any] = {"books": {"lives": [], "fragments": []}, "outer_steps": None}
        if status.get("phase") == "done" and status["error"] is None:
            told = books(status, entries(status, len(status["merged_tokens"])), None, {})
            summary = {"books": told, "outer_steps": status["outer_steps"]}
        found = contradictions(taped_of(plans, of_lives(tapes)), summary, list(self._mergings.values()))
        return f"books and tapes disagree, {len(found)} times: {found[:DIFFERENCES_SHOWN]}" if found else None
