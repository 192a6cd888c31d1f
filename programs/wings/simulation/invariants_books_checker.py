"""The invariants of the books in every universe: they agree with each other, with all messages, and with the tapes.

The checker keeps its own count of the tokens in the model: every published version has the tokens of the answers that
moved its clock, on top of those of the version before. It shares nothing with the books but the contents of the
answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from isthmus.ops.syncer.answer_work import ranges_of
from isthmus.programs.engine.recorder.accounts import LifeTokens, books, entries
from isthmus.programs.wings.simulation.taped_tokens import contradictions, of_lives, taped_of
from isthmus.runtime.graph.plans import EdgePlan, Plan
from isthmus.runtime.ids import ONE_RECORDER, Member
from isthmus.runtime.sim.checkers import Checker, ViolationError
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.universe import Universe

DIFFERENCES_SHOWN: Final = 3
Version = tuple[int, int]
Model = Counter[tuple[int, int]]
"""Tokens by (slot, incarnation)."""


def last_books(universe: Universe) -> tuple[dict[str, Any], list[LifeTokens]] | None:
    """The last status of the last recorder, and what it counts of each life, if it finished.

    ViolationError if its books disagree with each other.
    """
    last = universe.last(ONE_RECORDER)
    status = {} if last is None else last.host.published.get("record", {})
    if universe.outcome not in ("done", "stopped") or status.get("phase") != "done":
        return None
    life_tokens = entries(status, len(status["merged_tokens"]))
    differences = books(status, life_tokens, None, ())["differences"]
    if differences:
        raise ViolationError(f"the books disagree, {len(differences)} times: {differences[:DIFFERENCES_SHOWN]}")
    return status, life_tokens


class BooksChecker(Checker):
    """At the end of a run the books agree.

    Learners and shards agree about what became of every token; the model contains the tokens that the books count in
    it; and no receiver heard more from a live learner than the learner itself reports.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[Member, int, int, int, int], set[int]] = {}
        self._former: dict[tuple[Member, int, int, int, int], dict[int, int]] = {}
        """Tokens of earlier lives in the same answers, by incarnation: a new term numbers far above the last."""
        self._models: dict[tuple[int, Version], Model] = {}
        self._clocks: dict[tuple[int, Version], dict[int, tuple[int, int]]] = {}
        self._newest: dict[tuple[Member, int], Version] = {}
        self._finals: dict[int, set[Version]] = {}
        self._unsure: set[int] = set()

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """Note the token range of each answer that reaches a shard, and each final version that reaches a recorder."""
        if edge.target_port == "final":
            self._finals.setdefault(item["fragment"], set()).add((item["version"][0], item["version"][1]))
        if edge.target_port == "answer":
            own = [item["incarnation"], item["begin"], item["end"], item["steps"]]
            *former, (incarnation, begin, end, _) = ranges_of(item) or [own]
            key = life.member, item["fragment"], item["slot"], incarnation, end
            self._answers.setdefault(key, set()).add(begin)
            self._former.setdefault(key, {}).update({of: last - first for of, first, last, _ in former})

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Count the tokens in each version when it is first published."""
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
            self._unsure.add(p)  # It continues from a version that was never sent.
        model = Counter(self._models.get(base, {})) if base else Model()
        former = self._clocks.get(base, {}) if base else {}
        for slot, moved in clock.items():
            if moved != former.get(slot):
                model[slot, moved[0]] += self._range(life.member, p, slot, moved, former.get(slot, (0, 0)))
                for incarnation, tokens in self._former.get((life.member, p, slot, *moved), {}).items():
                    model[slot, incarnation] += tokens
        self._models[p, version], self._clocks[p, version] = model, clock

    def _range(self, shard: Member, p: int, slot: int, to: tuple[int, int], since: tuple[int, int]) -> int:
        floor = since[1] if since[0] == to[0] else 0
        begins = {each for each in self._answers.get((shard, p, slot, *to), ()) if each >= floor}
        if len(begins) != 1:
            self._unsure.add(p)
        return to[1] - max(begins, default=to[1])

    def ended(self, universe: Universe) -> None:
        """Check the last status of the last recorder, if that finished."""
        if (last := last_books(universe)) is not None:
            self._check_merged(*last)

    def _check_merged(self, status: dict[str, Any], life_tokens: list[LifeTokens]) -> None:
        """Compare the tokens that the books count as merged with those in the model."""
        for p in sorted({entry.fragment for entry in life_tokens} - self._unsure):
            of_fragment = (
                [entry for entry in life_tokens if entry.fragment == p] if status["model_whole"].get(p) else []
            )
            wrong = [
                [entry for entry in of_fragment if entry.merged != truth[_life(entry)]] for truth in self._truths(p)
            ]
            if all(wrong):
                entry, truth = wrong[-1][0], self._truths(p)[-1]
                who = f"learner {entry.learner}#{entry.incarnation}, fragment {p}"
                is_in = f"{truth[_life(entry)]} are"
                raise ViolationError(f"{who}: {entry.merged} tokens are said to be in the model, and {is_in}")

    def _truths(self, p: int) -> list[Model]:
        """The tokens in a fragment of the final model, in each version that a recorder was sent as final; where there
        was none, in the newest."""
        sent = [(p, version) for version in sorted(self._finals.get(p, ()))]
        finals = [self._models[each] for each in sent if each in self._models]
        last = max((shard for shard, of in self._newest if of == p), key=lambda shard: shard.incarnation, default=None)
        newest = Model() if last is None else self._models[p, self._newest[last, p]]
        return finals or [newest]


def _life(entry: LifeTokens) -> tuple[int, int]:
    return entry.learner, entry.incarnation


class TapesChecker(Checker):
    """Every reported merge merged the tokens of the answers on its shard's tape.

    Where the recorder finished, its books have the steps and merges of the tapes.
    """

    def __init__(self) -> None:
        self._mergings: dict[tuple[int, int, int], Mapping[str, Any]] = {}

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Note merges that shards report."""
        if edge.source_port == "merged":
            self._mergings[item["fragment"], item["epoch"], item["round"]] = item

    def objection(self, plans: Mapping[str, Plan], tapes: Mapping[str, bytes], status: Mapping[str, Any]) -> str | None:
        """The violation in a finished universe, in words; None if there is none. `status`: the recorder's last."""
        summary: dict[str, Any] = {"books": {"lives": [], "fragments": []}, "outer_steps": None}
        if status.get("phase") == "done" and status["error"] is None:
            accounts = books(status, entries(status, len(status["merged_tokens"])), None, ())
            summary = {"books": accounts, "outer_steps": status["outer_steps"]}
        disagreements = contradictions(taped_of(plans, of_lives(tapes)), summary, list(self._mergings.values()))
        return (
            f"books and tapes disagree, {len(disagreements)} times: {disagreements[:DIFFERENCES_SHOWN]}"
            if disagreements
            else None
        )
