"""A post: what a home makes of the reports of an outpost, of their loss, repetition and end."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.runtime.control import Message
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.lives import Life
from isthmus.runtime.post import LOST_BEATS, Post

ONE, TWO = Replica("learner", 0), Replica("learner", 1)


class Home:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lives: dict[Replica, Life] = {}
        self.told: list[str] = []
        self.sent: list[Message] = []
        self.counted: list[Life] = []
        self.post = Post("beta", self.lives, self, count=self.counted.append, send=self.sent.append)

    def life_began(self, life: Life) -> None:
        self.told.append(f"{life.member} began")

    def life_heard(self, life: Life) -> None:
        self.told.append(f"{life.member} heard")

    def life_failed(self, life: Life) -> None:
        self.told.append(f"{life.member} failed: {life.error}")

    def life_ended(self, life: Life, reason: str) -> None:
        self.told.append(f"{life.member} {reason}")

    def take(self) -> list[str]:
        """What it was told since the last time."""
        told, self.told = self.told, []
        return told

    def hear(self, *lives: dict[str, Any], ended: tuple[Any, ...] = ()) -> list[str]:
        self.post.hear({"lives": lives, "ended": list(ended)})
        return self.take()

    def members(self) -> list[Any]:
        """The lives of the newest orders."""
        self.post.order(roster=None)
        members: list[Any] = self.sent[-1]["members"]
        return members


def row(replica: Replica, life: int, beats: int, **more: Any) -> dict[str, Any]:
    said = {"endpoints": [], "phase": "stepping", "published": {}, "figures": {"cpu_seconds": 2.0}, "error": ""}
    known = {"replica": str(replica), "incarnation": life, "pid": 4711, "beats": beats, "is_stopped": False}
    return {**known, **said, **more}


def test_a_life_is_wanted_begins_is_heard_and_ends_once() -> None:
    home = Home()
    home.post.start(Member(ONE, 1))
    assert home.members() == [["learner/0", 1, True]]
    assert home.post.is_starting(ONE)
    began = home.hear(row(ONE, 1, 1))
    assert began == [f"{Member(ONE, 1)} began", f"{Member(ONE, 1)} heard"]
    assert not home.post.is_starting(ONE)
    assert home.hear(row(ONE, 1, 1)) == []  # It says nothing new: the host has not spoken since.
    assert home.hear(row(ONE, 1, 2, error="boom")) == [f"{Member(ONE, 1)} failed: boom", f"{Member(ONE, 1)} heard"]
    ending = ["learner/0", 1, "exited with status 1", {"cpu_seconds": 3.0}]
    assert home.hear(ended=(ending,)) == [f"{Member(ONE, 1)} exited with status 1"]
    assert home.hear(ended=(ending,)) == []
    assert home.counted[0].figures["cpu_seconds"] == 3.0
    assert home.post.is_idle
    assert not home.lives


def test_what_is_killed_is_not_wanted_and_stays_tracked_until_its_end_is_told() -> None:
    home = Home()
    home.post.start(Member(ONE, 1))
    home.hear(row(ONE, 1, 1))
    home.post.kill(home.lives[ONE])
    assert home.members() == [["learner/0", 1, False]]
    home.post.start(Member(ONE, 2))  # Too early: the old one is there.
    assert home.members() == [["learner/0", 1, False]]
    home.hear(ended=(["learner/0", 1, "killed by signal SIGKILL", {}],))
    assert home.post.is_idle


def test_reports_of_lives_that_are_not_wanted_are_not_believed() -> None:
    home = Home()
    home.post.start(Member(ONE, 2))
    assert home.hear(row(ONE, 1, 9), row(TWO, 1, 9), ended=(["learner/0", 1, "exited", {}],)) == []
    assert home.post.is_starting(ONE)


def test_a_machine_that_is_silent_is_lost_and_its_lives_are_new_when_it_is_back() -> None:
    home = Home()
    home.post.start(Member(ONE, 1))
    home.post.start(Member(TWO, 1))
    home.hear(row(ONE, 1, 1))
    for _ in range(LOST_BEATS - 1):
        home.post.beat()
    assert not home.post.is_lost
    home.post.beat()
    assert home.post.is_lost
    told = home.take()
    assert len(told) == 2
    assert all("ended with its machine beta, which has not been heard of for 20 s" in line for line in told)
    home.post.start(Member(ONE, 2))
    assert home.hear(row(ONE, 1, 77)) == []
    assert not home.post.is_lost
    assert home.members() == [["learner/0", 2, True]]
    home.post.beat()
    assert not home.post.is_lost


def test_a_report_makes_the_silence_begin_anew() -> None:
    home = Home()
    home.post.start(Member(ONE, 1))
    for _ in range(3):
        for _ in range(LOST_BEATS - 1):
            home.post.beat()
        home.hear()
    assert not home.post.is_lost


@pytest.mark.parametrize("report", [{}, {"lives": [{}], "ended": []}, {"lives": [], "ended": [["learner/0"]]}])
def test_what_is_no_report_is_refused(report: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        Home().post.hear(report)


def test_a_phase_that_there_is_not_is_refused() -> None:
    home = Home()
    home.post.start(Member(ONE, 1))
    with pytest.raises(ValueError, match="no phase"):
        home.hear(row(ONE, 1, 1, phase="dancing"))
