"""The learner of an elastic island, with workers that are scripted: what is done again when one of them is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest

from isthmus.ops.data.positions import Step
from isthmus.programs.wings.elastic.learner import BROKEN_MAX, COPY_SHARE, ElasticError, ElasticLearner, HostWorker


class Form(NamedTuple):
    number: int
    members: tuple[tuple[int, int], ...]


BOTH, ALONE = ((0, 1), (1, 1)), ((0, 1),)


class Worker:
    """One that counts what it is asked: its state is all of that, from the copy of a host."""

    def __init__(self, gang: Gang, told: Mapping[str, Any]) -> None:
        self.gang, self.told = gang, told
        self.state = list(gang.copies.get(told["basis"], []))
        self.answers: list[Any] = [("formed", "toy", bool(self.state))]
        self.is_gone = False

    def send(self, asked: Any) -> None:
        if self.is_gone:
            raise BrokenPipeError
        self.gang.asked.append((self.told["form"], asked[0]))
        if self.gang.dies(self.told["form"], asked):
            self.is_gone = True
            return
        result: Any = None
        if asked[0] == "copy":
            self.gang.count += 1
            result = 1, self.gang.count
            self.gang.copies[result] = list(self.state)
        elif asked[0] != "extract":
            self.state.append(asked[1:] or asked)
        self.answers.append(("done", result if asked[0] != "extract" else list(self.state)))

    def poll(self, seconds: float) -> bool:
        del seconds
        return bool(self.answers) or self.is_gone

    def recv(self) -> Any:
        if not self.answers:
            raise EOFError
        return self.answers.pop(0)


class Gang:
    """The host of a leader, and its forker; each time that it waits for a form, there is the next of `forms`."""

    number, names, incarnation = 0, ("learner/0", "learner.1/0"), 1

    def __init__(self, *forms: Form, dies: Callable[[int, Any], bool] = lambda form, asked: False) -> None:
        self.forms, self.dies = list(forms), dies
        self.workers = self
        self.newest: Form | None = None
        self.copies: dict[Any, list[Any]] = {}
        self.count = 0
        self.asked: list[tuple[int, str]] = []
        self.told: list[tuple[int, int, int, int]] = []
        self.broken: list[int] = []
        self.now = 0

    def form(self) -> Form | None:
        return self.newest

    def wait(self, seconds: float) -> None:
        del seconds
        self.newest = self.forms.pop(0)

    def find(self, incarnation: int) -> tuple[str, str] | None:
        raise NotImplementedError

    def forming(self, broken: int) -> None:
        self.broken.append(broken)

    def formed(self, number: int, processes: int, stall: int, again: int) -> None:
        self.told.append((number, processes, stall, again))

    def start(self, told: Mapping[str, Any]) -> Worker:
        return Worker(self, told)

    def end(self) -> None:
        self.now += 1000

    def clock(self) -> int:
        self.now += 1
        return self.now


def learner_of(gang: Gang) -> ElasticLearner:
    learner = ElasticLearner(gang, where=lambda: Step(gang.now), now=gang.clock)
    learner.compile(None)
    return learner


def test_what_was_asked_since_the_copy_is_done_again_in_the_next_form() -> None:
    gang = Gang(Form(1, BOTH), Form(2, ALONE), dies=lambda form, asked: form == 1 and asked[:2] == ("step", "e"))
    learner = learner_of(gang)
    learner._copy_took = 1 << 40  # No other copy than the first.
    for batch in "abcd":
        learner.step(batch, 0.5)
    learner.adopt(3, "values")  # type: ignore[arg-type]
    learner.step("e", 0.5)
    state = [asked[0] for asked in learner.extract(0)]
    assert state == ["a", "b", "c", "d", 3, "e"]
    assert [form for form, kind in gang.asked if kind == "copy"] == [1, 2, 2]
    assert gang.told[1][:2] == (2, 1)
    assert gang.told[1][3] == 4
    assert gang.told[1][2] >= 1000
    assert gang.broken == [0, 1]


def test_a_copy_is_made_so_often_that_it_costs_a_twentieth() -> None:
    gang = Gang(Form(1, BOTH))
    learner = learner_of(gang)
    for _ in range(200):
        learner.step("a", 0.5)
    steps = sum(kind == "step" for _, kind in gang.asked)
    counted = sum(kind == "copy" for _, kind in gang.asked)
    assert steps / (2 * COPY_SHARE) < counted < steps


def test_one_that_is_back_is_taken_in_before_a_step_from_a_copy_made_then() -> None:
    gang = Gang(Form(1, ALONE))
    learner = learner_of(gang)
    learner._copy_took = 1 << 40
    learner.step("a", 0.5)
    gang.newest = Form(2, BOTH)
    learner.replace(0, "values")  # type: ignore[arg-type]
    assert len(gang.told) == 1
    learner.step("b", 0.5)
    assert gang.told[1][:2] == (2, 2)
    assert gang.told[1][3] == 0  # No step was made again.
    assert gang.asked[-5:] == [(1, "replace"), (1, "copy"), (2, "copy"), (2, "step"), (2, "copy")]
    assert [asked[0] for asked in learner.extract(0)] == ["a", 0, "b"]


def test_one_of_its_form_that_is_gone_is_not_waited_for() -> None:
    gang = Gang(Form(1, BOTH))
    learner = learner_of(gang)
    worker = learner._worker
    worker.send = lambda asked: setattr(gang, "newest", Form(2, ALONE))  # It hangs, and nothing comes of it.
    learner.begin()
    assert gang.told[1][:2] == (2, 1)
    assert learner.extract(0) == [("begin",)]


def test_what_a_life_takes_over_is_kept_at_its_first_restart_alone() -> None:
    gang = Gang(Form(1, BOTH))
    gang.copies[None] = ["moments"]
    learner = learner_of(gang)
    learner.restart()
    assert learner.extract(0) == ["moments"]
    learner.restart()
    assert learner.extract(0) == ["moments", ("restart",)]


def test_forms_that_all_come_to_nothing_are_the_fault_of_the_program() -> None:
    forms = [Form(number, BOTH) for number in range(1, BROKEN_MAX + 3)]
    gang = Gang(*forms, dies=lambda form, asked: asked[0] == "step")
    learner = learner_of(gang)
    with pytest.raises(ElasticError, match=f"expected a step within {BROKEN_MAX} forms, found none"):
        learner.step("a", 0.5)


def test_what_the_task_raises_is_raised_here() -> None:
    gang = Gang(Form(1, BOTH))
    learner = learner_of(gang)
    learner._worker.answers = [("raised", "ValueError: mine")]
    with pytest.raises(ElasticError, match="ValueError: mine"):
        learner.extract(0)


def test_no_form_is_broken_and_nothing_stalls_before_the_first() -> None:
    gang = Gang(Form(4, BOTH), Form(5, ALONE), dies=lambda form, asked: form == 4 and asked[0] == "step")
    learner_of(gang).step({}, None)
    assert gang.broken == [0, 4]
    assert gang.told[0] == (4, 2, 0, 0)
    assert gang.told[1][2] > 0


class Follower(Gang):
    """The host of process 1, which follows; the leader's address is known."""

    number, incarnation = 1, 1

    def __init__(self, *forms: Form) -> None:
        super().__init__(*forms)
        self.started: list[Worker] = []
        self.ends = self.waits = 0
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        self.waits += 1
        if self.forms:
            self.newest = self.forms.pop(0)

    def find(self, incarnation: int) -> tuple[str, str] | None:
        return "127.0.0.1", str(incarnation)

    def start(self, told: Mapping[str, Any]) -> Worker:
        self.started.append(Worker(self, told))
        return self.started[-1]

    def end(self) -> None:
        self.ends += 1


def test_a_follower_works_in_forms_that_it_is_in_and_in_no_other() -> None:
    gang = Follower(Form(1, ALONE), Form(2, BOTH), Form(3, (*BOTH, (2, 1))), Form(4, ALONE))
    host = HostWorker(gang)
    host.look(0.0)
    assert gang.started == []  # It waits for a form that has it.
    host.look(0.0)
    host.look(0.0)
    assert [(worker.told["number"], worker.told["form"]) for worker in gang.started] == [(1, 2)]
    gang.wait(0.0)
    host.look(0.0)
    assert (len(gang.started), gang.ends) == (1, 0)  # The leader ends the form that only grows.
    gang.wait(0.0)
    host.look(0.0)
    assert (len(gang.started), gang.ends) == (1, 1)


def test_a_follower_whose_worker_breaks_joins_again_and_one_whose_task_raises_does_not() -> None:
    gang = Follower(Form(2, BOTH))
    host = HostWorker(gang)
    for answer in (("formed", "toy", False), ("broken", "")):
        host.look(0.0)
        gang.started[-1].answers = [answer]
    waits = gang.waits
    host.look(0.0)
    assert (gang.ends, gang.waits) == (1, waits + 1)
    host.look(0.0)
    assert len(gang.started) == 2
    gang.started[-1].answers = [("raised", "ValueError: mine")]
    with pytest.raises(ElasticError, match="mine"):
        host.look(0.0)
