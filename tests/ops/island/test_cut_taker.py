"""The node that takes what is evaluated: which versions, when, how many at once; with shards that are slow, or die."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.exchange.messages import EvaluationNeeds, SentVersion, ShardState, ToldVersion
from isthmus.ops.island import cut_taker
from isthmus.ops.island.cut_taker import CutTaker
from isthmus.ops.island.evaluate import EvaluationSchedule
from isthmus.ops.syncer.version_sender import VersionSender
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.schemas import compiled
from tests.effort import examples
from tests.ops.bodies import Context, SmallTask, fragments_of

PARTS = fragments_of(SmallTask(), 2)
TOKENS = 100
NEEDS = EvaluationNeeds(during=True, final=True)


def told(p: int, count: int, *, tokens: int = 0, life: int = 1, epoch: int = 1, kind: Any = "merge") -> Any:
    return ToldVersion(
        shard=0, incarnation=life, fragment=p, version=[epoch, count], kind=kind, totals=[[0, 1, tokens]]
    )


def values_of(p: int, version: list[int]) -> Any:
    return np.full(PARTS[p].size, 100.0 * version[0] + version[1], np.float32)


def version(p: int, count: int, number: int, *, epoch: int = 1, tokens: int = 0) -> Any:
    return SentVersion(
        fragment=p,
        version=[epoch, count],
        kind="merge",
        values=values_of(p, [epoch, count]),
        clock=[],
        positions=[],
        totals=[[0, 1, tokens]],
        refused=[],
        number=number,
    )


class Taker:
    """A cut taker, what it wants by fragment, and what it has given."""

    def __init__(self, *, times: int = 6, incarnation: int = 1) -> None:
        self.body = CutTaker(PARTS, tokens=TOKENS, times=times)
        self.body.open(Context("evaluator", incarnation=incarnation))
        self.wanted: dict[int, Any] = {}
        self.cuts: list[Any] = []
        self.taken: list[Any] = []

    def hear(self, *items: Any) -> None:
        self.fire(told={(Replica("syncer", 0), item["fragment"]): item for item in items})

    def get(self, *items: Any) -> None:
        self.fire(version={(Replica("syncer", 0), item["fragment"]): item for item in items})

    def fire(self, **items: Any) -> None:
        for port, item in self.body(**items) or []:
            if port == "wanted":
                self.wanted[item["fragment"]] = item
            else:
                {"cut": self.cuts, "taken": self.taken}[port].append(item)

    def give(self) -> None:
        """Give what is asked for."""
        asked = [item for item in self.wanted.values() if item["number"]]
        self.get(*(version(i["fragment"], i["version"][1], i["number"], epoch=i["version"][0]) for i in asked))

    @property
    def asked(self) -> dict[int, list[int]]:
        return {p: item["version"] for p, item in sorted(self.wanted.items()) if item["number"]}

    def begin(self) -> None:
        """The first cut is taken and dealt with."""
        self.hear(told(0, 0), told(1, 0))
        self.give()
        self.fire(done=NEEDS)
        self.cuts.clear()
        self.taken.clear()


def test_the_first_cut_is_of_all_fragments_and_waits_for_the_last() -> None:
    taker = Taker()
    taker.hear(told(1, 0))
    assert taker.asked == {}
    taker.hear(told(0, 0))
    assert taker.asked == {0: [1, 0], 1: [1, 0]}
    taker.give()
    [cut] = taker.cuts
    assert (cut["kind"], cut["tokens"], len(cut["values"])) == ("initial", 0, 2)
    assert sorted(item["fragment"] for item in taker.taken) == [0, 1]
    assert taker.asked == {}


def test_versions_between_two_evaluations_are_never_asked_for() -> None:
    taker = Taker()
    taker.begin()
    for count in range(1, 4):
        taker.hear(told(0, count, tokens=5 * count))
        assert taker.asked == {}
        assert taker.wanted[0] == {"fragment": 0, "version": [1, count], "number": 0}


def test_a_cut_is_of_the_versions_that_were_known_when_it_became_due() -> None:
    taker = Taker()
    taker.begin()
    taker.hear(told(0, 1, tokens=10))
    taker.hear(told(1, 1, tokens=20))
    assert taker.asked == {0: [1, 1], 1: [1, 1]}
    taker.hear(told(0, 2, tokens=25), told(1, 2, tokens=30))
    assert taker.asked == {0: [1, 1], 1: [1, 1]}
    taker.give()
    [cut] = taker.cuts
    assert (cut["kind"], cut["tokens"]) == ("during", 20)
    assert [each[0] for each in cut["values"]] == [101.0, 101.0]
    assert taker.wanted[0] == {"fragment": 0, "version": [1, 2], "number": 0}


def test_what_is_here_already_is_not_asked_for_again() -> None:
    taker = Taker()
    taker.begin()
    taker.hear(told(1, 1, tokens=20))
    assert taker.asked == {1: [1, 1]}
    taker.give()
    [cut] = taker.cuts
    assert [each[0] for each in cut["values"]] == [100.0, 101.0]


def test_the_next_cut_waits_until_the_former_is_dealt_with() -> None:
    taker = Taker()
    taker.begin()
    taker.hear(told(0, 1, tokens=20))
    taker.give()
    taker.hear(told(0, 2, tokens=40))
    taker.hear(told(0, 3, tokens=45))
    assert taker.asked == {}
    taker.fire(done=NEEDS)
    assert taker.asked == {0: [1, 3]}
    taker.give()
    assert [cut["tokens"] for cut in taker.cuts] == [20, 45]


def test_the_last_cut_is_due_when_all_fragments_are_final_and_then_it_is_over() -> None:
    taker = Taker()
    taker.begin()
    taker.hear(told(0, 1, tokens=18, kind="final"))
    assert taker.asked == {}
    taker.hear(told(1, 1, tokens=19, kind="final"))
    taker.give()
    assert [cut["kind"] for cut in taker.cuts] == ["final"]
    assert taker.body.is_finished
    assert all(not item["number"] for item in taker.wanted.values())


@pytest.mark.parametrize("is_needed", [True, False])
def test_where_nothing_is_evaluated_the_first_cut_is_taken_and_the_last_where_it_is_needed(*, is_needed: bool) -> None:
    taker = Taker(times=0)
    taker.hear(told(0, 0), told(1, 0))
    taker.give()
    assert [cut["kind"] for cut in taker.cuts] == ["initial"]
    taker.fire(done=EvaluationNeeds(during=False, final=is_needed))
    for count in range(1, 4):
        taker.hear(told(0, count, tokens=30 * count), told(1, count, tokens=30 * count))
        assert taker.asked == {}
    taker.hear(told(0, 4, tokens=95, kind="final"), told(1, 4, tokens=95, kind="final"))
    assert len(taker.asked) == (2 if is_needed else 0)
    taker.give()
    assert (taker.cuts[-1]["kind"], len(taker.cuts[-1]["values"])) == ("final", 2 if is_needed else 0)


def test_a_task_without_an_evaluation_is_asked_for_none_either() -> None:
    taker = Taker()
    taker.hear(told(0, 0), told(1, 0))
    taker.give()
    taker.fire(done=EvaluationNeeds(during=False, final=False))
    taker.hear(told(0, 1, tokens=60))
    assert taker.asked == {}


def test_a_shard_that_comes_back_is_asked_for_what_it_has() -> None:
    taker = Taker()
    taker.begin()
    taker.hear(told(0, 5, tokens=20), told(1, 5, tokens=20))
    first = {p: item["number"] for p, item in taker.wanted.items()}
    taker.get(version(1, 5, first[1]))
    taker.hear(told(0, 4, life=2, tokens=20))
    assert taker.asked == {0: [1, 4]}
    assert taker.wanted[0]["number"] > first[0]
    taker.get(version(0, 5, first[0]))
    assert not taker.cuts, "the answer to the former wish"
    taker.give()
    [cut] = taker.cuts
    assert [each[0] for each in cut["values"]] == [104.0, 105.0]


def test_a_version_that_is_gone_is_the_newest_and_so_are_its_tokens() -> None:
    taker = Taker()
    taker.begin()
    taker.hear(told(0, 1, tokens=20))
    taker.get(version(0, 3, taker.wanted[0]["number"], tokens=33))
    [cut] = taker.cuts
    assert (cut["tokens"], cut["values"][0][0]) == (33, 103.0)
    taker.fire(done=NEEDS)
    taker.hear(told(0, 3, tokens=45))
    assert taker.asked == {}, "it is here"
    assert taker.cuts[-1]["tokens"] == 45


@pytest.mark.parametrize("limit", [1, 4 * PARTS[0].size, 1 << 20])
def test_so_many_bytes_are_on_their_way_at_once(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(cut_taker, "ASKED_BYTES", limit)
    taker, most = Taker(), 0
    taker.hear(told(0, 0), told(1, 0))
    while not taker.cuts:
        size = sum(4 * PARTS[p].size for p in taker.asked)
        assert size <= limit or len(taker.asked) == 1
        most = max(most, len(taker.asked))
        taker.give()
    assert most == (2 if limit > 8 * max(part.size for part in PARTS) else 1)


def test_a_later_life_of_the_evaluator_numbers_its_transfers_anew() -> None:
    first, second = Taker(), Taker(incarnation=2)
    for taker in (first, second):
        taker.hear(told(0, 0), told(1, 0))
    late = version(0, 0, first.wanted[0]["number"])
    second.get(late)
    assert not second.taken


def test_a_version_of_another_size_is_refused() -> None:
    check = compiled(CutTaker.schemas(PARTS)["version"])
    sender = Member(Replica("syncer", 0), 1)
    item = version(0, 0, 1)
    assert check(item, {}, sender) is None
    assert check({**item, "values": item["values"][:0]}, {}, sender) is None
    assert check({**item, "values": item["values"][1:]}, {}, sender) is not None
    assert check({**item, "fragment": 2}, {}, sender) is not None


# -- whatever comes when -----------------------------------------------------------------------------------------------


STEPS = st.lists(st.sampled_from(["merge 0", "merge 1", "to taker", "to sender", "done"]), max_size=60)


@settings(max_examples=examples(400), deadline=None)
@given(STEPS, st.sampled_from([1, 1 << 20]))
def test_what_is_evaluated_does_not_depend_on_when_values_come(steps: list[str], limit: int) -> None:
    """Beside an evaluator that hears each version at once, and holds it: at the moment of each decision both have the
    same versions and tokens. Mailboxes keep the newest item of each fragment, as those of hosts do."""
    sender, context = VersionSender(), Context("syncer")
    context.live = {Member(Replica("evaluator", 0), 1)}
    sender.open(context)
    taker = Taker()
    expected: list[tuple[int, list[float]]] = []
    schedule, counts, tokens, known, heard = EvaluationSchedule(TOKENS, 6), [-1, -1], 0, {}, 0
    to_sender: dict[int, Any] = {}
    to_taker: dict[int, Any] = {}

    def look() -> None:
        """What one that holds all that is told would evaluate now."""
        idle = len(taker.cuts) == done and len(expected) == len(taker.cuts)
        if idle and len(known) == len(PARTS) and schedule.due(heard, is_final=False):
            expected.append((heard, [100.0 + known[p] for p in range(len(PARTS))]))

    def to_shard() -> None:
        emitted = sender(wanted={(Replica("evaluator", 0), p): item for p, item in to_sender.items()})
        to_sender.clear()
        to_taker.update({item["fragment"]: item for _, item in emitted or []})

    def from_shard() -> None:
        items = dict(to_taker)
        to_taker.clear()
        taker.get(*items.values())
        to_sender.update(taker.wanted)

    done = 0
    cut_taker_limit, cut_taker.ASKED_BYTES = cut_taker.ASKED_BYTES, limit  # type: ignore[misc]
    try:
        for step in [*steps, *["to sender", "to taker"] * 4]:
            if step.startswith("merge"):
                p = int(step[-1])
                if p in to_sender:
                    to_shard()  # A fragment is merged less often than a message takes.
                counts[p] += 1
                tokens += 7
                state = {**version(p, counts[p], 0, tokens=tokens), "tensors": {}, "lengths": []}
                sender(state={(Replica("syncer", 0), p): ShardState(**state)})  # type: ignore[typeddict-item]
                known[p], heard = counts[p], tokens
                look()
                taker.hear(told(p, counts[p], tokens=tokens))
                to_sender.update(taker.wanted)
            elif step == "to sender":
                to_shard()
            elif step == "to taker":
                from_shard()
            elif len(taker.cuts) > done:
                done = len(taker.cuts)
                look()
                taker.fire(done=NEEDS)
                to_sender.update(taker.wanted)
    finally:
        cut_taker.ASKED_BYTES = cut_taker_limit  # type: ignore[misc]
    made = [(cut["tokens"], [float(each[0]) for each in cut["values"]]) for cut in taker.cuts]
    assert made == expected[: len(made)]
    assert len(expected) <= len(made) + 1
