"""Elastic data-parallel by hand: a caller, an average and learners that come and go, between them whatever the test
does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.batches import At
from isthmus.ops.syncer.pacer import START_WAIT
from isthmus.programs.wings.data_parallel.elastic_rounds import Average, Caller
from isthmus.programs.wings.data_parallel.gradient_step import ElasticStep
from tests.ops.bodies import Context, SmallTask, fragments_of

TASK = SmallTask()
"""One for all tests, whose functions are compiled once."""


class Group:
    """Everybody's bodies; `learners` by slot."""

    def __init__(self, count: int, *, tokens: int = 10_000) -> None:
        self.task, self.tokens = TASK, tokens
        self.caller, self.average = (
            Caller(learners=count, tokens=tokens),
            Average(fragments_of(self.task, 1), tokens_most=24),
        )
        for body in (self.caller, self.average):
            body.open(Context("syncer"))
        self.learners: dict[int, ElasticStep] = {}
        self.positions: dict[int, int] = {}
        self.said: dict[Any, Any] = {}
        self.called: dict[str, Any] | None = None
        for slot in range(count):
            self.called = self.join(slot) or self.called

    def join(self, slot: int, incarnation: int = 1) -> dict[str, Any] | None:
        """A learner comes, and says that it is there; what the caller makes of it."""
        learner = ElasticStep(self.task, tokens=self.tokens, emit_every=5)
        learner.open(Context(slot=slot, incarnation=incarnation))
        self.learners[slot], self.positions[slot] = learner, 0
        emitted = dict(learner(None, None))
        assert emitted["progress"]["phase"] == "ready"
        return dict(self.caller(progress={(f"learner/{slot}", None): emitted["progress"]}))

    def round(self, *, silent: tuple[int, ...] = ()) -> dict[str, Any]:
        """Everybody follows the call, but for the `silent`, the votes of the members are averaged, and the next round
        is called; the result is the call that was followed."""
        assert self.called is not None
        call, votes, progress = self.called["call"], {}, {}
        for slot, learner in self.learners.items():
            if slot in silent:
                continue
            batch = self.task.batch(At(0, slot, self.positions[slot]))
            self.positions[slot] += 1
            for port, item in learner(batch, {("syncer/0", None): call}):
                if port == "vote":
                    votes[f"learner/{slot}", None] = item
                elif port == "progress":
                    progress[f"learner/{slot}", None] = item
        if progress:
            self.caller(progress=progress)
        if "round" not in self.called:
            return call
        members = self.called["round"]["members"]
        counted = {key: vote for key, vote in votes.items() if [vote["slot"], vote["incarnation"]] in members}
        averaged = self.average(round=self.called["round"], vote=counted)["averaged"]
        self.called = dict(self.caller(averaged=averaged))
        return call

    def states(self) -> set[bytes]:
        """The different bytes that learners hold."""
        return {b"".join(leaf.tobytes() for leaf in learner._learner.state()) for learner in self.learners.values()}


def test_all_begin_together_and_hold_the_same_bytes_at_every_step() -> None:
    group = Group(3)
    seen = []
    for count in range(6):
        call = group.round()
        assert call["members"] == [[0, 1], [1, 1], [2, 1]]
        assert call["trained"] == 8 * 3 * count
        assert len(group.states()) == 1
        seen += group.states()
    assert len(set(seen)) == 6


def test_nobody_is_called_before_all_are_there_and_not_for_ever_later() -> None:
    caller, context = Caller(learners=2, tokens=100), Context("syncer")
    caller.open(context)
    report = {"slot": 0, "incarnation": 1, "phase": "ready", "step": 0, "step_time": 0, "delay_steps": 0, "epochs": []}
    assert caller(progress={("learner/0", None): report}) == []
    context.at += START_WAIT
    called = dict(caller(control={("recorder/0", None): {"stop": False, "tokens": 100, "totals": [], "published": []}}))
    assert called["round"]["members"] == [[0, 1]]


def test_a_step_is_made_by_those_that_are_left() -> None:
    group = Group(3)
    group.round()
    dead = group.learners.pop(1)
    assert group.round()["members"] == [[0, 1], [1, 1], [2, 1]]
    assert group.round()["members"] == [[0, 1], [2, 1]]
    assert len(group.states()) == 1
    assert b"".join(leaf.tobytes() for leaf in dead._learner.state()) not in group.states()


def test_whoever_comes_back_takes_the_state_of_another_and_is_at_the_same_step() -> None:
    group = Group(3)
    group.round()
    del group.learners[1]
    group.round()
    group.join(1, incarnation=2)
    calls = [group.round() for _ in range(5)]
    assert [call["donor"] for call in calls] == [None, 0, None, None, None]
    assert [call["served"] for call in calls] == [[], [], [[1, 2]], [], []]
    assert [[slot for slot, _ in call["members"]] for call in calls] == [[0, 2], [0, 2], *([[0, 1, 2]] * 3)]
    assert len(group.states()) == 1


def test_if_the_donor_dies_another_is_asked() -> None:
    group = Group(3)
    group.round()
    group.join(3)
    group.round()
    assert group.called is not None
    assert group.called["call"]["donor"] == 0
    del group.learners[0]
    group.round()
    assert group.called["call"]["donor"] == 1
    assert group.called["call"]["members"] == [[1, 1], [2, 1]]
    for _ in range(2):
        group.round()
    assert len(group.states()) == 1
    assert group.round()["members"] == [[1, 1], [2, 1], [3, 1]]


def test_a_learner_that_missed_a_mean_waits_for_a_state() -> None:
    group = Group(2)
    group.round()
    group.round(silent=(1,))  # Its vote is not there: the others have let go of it.
    group.round(silent=(1,))
    for _ in range(4):
        group.round()
    assert len(group.states()) == 1
    assert group.round()["members"] == [[0, 1], [1, 1]]


def test_all_end_after_the_same_step_when_the_budget_is_spent() -> None:
    group = Group(2, tokens=8 * 2 * 3)
    for _ in range(4):
        group.round()
    assert group.caller.is_finished
    assert all(learner.is_finished for learner in group.learners.values())
    assert len(group.states()) == 1


def test_who_asks_for_the_end_gets_it_after_the_open_round() -> None:
    group = Group(2)
    group.round()
    assert (
        group.caller(control={("recorder/0", None): {"stop": True, "tokens": 0, "totals": [], "published": []}}) == []
    )
    group.round()
    assert group.called is not None
    assert group.called["call"]["is_last"]
    assert "round" not in group.called


def test_without_a_learner_the_run_fails_and_says_why() -> None:
    group = Group(2)
    assert group.called is not None
    with pytest.raises(RuntimeError, match="all learners of elastic-data-parallel are gone"):
        group.average(round=group.called["round"], vote={})


def test_the_mean_is_weighted_by_tokens() -> None:
    group = Group(2)
    assert group.called is not None
    size = fragments_of(group.task, 1)[0].size
    votes = {
        (f"learner/{slot}", None): {
            "round": 1,
            "slot": slot,
            "incarnation": 1,
            "tokens": tokens,
            "values": np.full(size, value, np.float32),
            "state": None,
            "positions": [[slot, 1]],
            "stream": None,
        }
        for slot, (tokens, value) in enumerate([(8, 1.0), (24, 5.0)])
    }
    assert set(group.average(round=group.called["round"], vote=votes)["averaged"]["mean"]) == {4.0}
