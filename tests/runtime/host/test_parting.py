"""When a host that is to leave may end: what it had sent has arrived, and what it sends later does not count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from isthmus.runtime.clock import Instant
from isthmus.runtime.host.own_process import Parting


class Sent:
    """A channel with items under way, by the instants at which their transfers began."""

    def __init__(self, *begun: int) -> None:
        self.begun = begun

    def under_way(self) -> list[Any]:
        return [(None, 1, Instant(at)) for at in self.begun]


def ends(*beats: tuple[bool, tuple[int, ...]]) -> list[bool]:
    """At which beats, 10 apart, a host may end that has left or not, and has sent these."""
    parting: Any = Parting()
    return [
        parting.is_over(SimpleNamespace(has_left=has_left), Sent(*begun), Instant(10 * number))
        for number, (has_left, begun) in enumerate(beats, 1)
    ]


def test_with_nothing_under_way_it_ends_at_once() -> None:
    assert ends((True, ())) == [True]


def test_it_waits_for_what_it_had_sent_and_not_for_what_it_sends_meanwhile() -> None:
    assert ends((True, (8, 9)), (True, (9, 19)), (True, (28, 29))) == [False, False, True]


def test_one_that_is_engaged_again_begins_anew() -> None:
    assert ends((True, (8,)), (False, ()), (True, (29,)), (True, (31,))) == [False, False, False, True]
