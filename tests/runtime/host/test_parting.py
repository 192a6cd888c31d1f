"""When a host that is to leave may end: what it had sent has arrived, and what it sends later does not count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.runtime.clock import Instant
from isthmus.runtime.host.own_process import ITSELF_STAYS, Parting


class Sent:
    """A channel with items under way, by the instants at which their transfers began."""

    def __init__(self, *begun: int) -> None:
        self.begun = begun

    def under_way(self) -> list[Any]:
        return [(None, 1, Instant(at)) for at in self.begun]


def host(*, has_left: bool = True, leaves_itself: bool = False, stop_requested: bool = False) -> Any:
    return SimpleNamespace(has_left=has_left, leaves_itself=leaves_itself, stop_requested=stop_requested)


def ends(*beats: tuple[bool, tuple[int, ...]]) -> list[bool]:
    """At which beats, 10 apart, a host may end that has left or not, and has sent these."""
    parting: Any = Parting()
    return [
        parting.is_over(host(has_left=has_left), Sent(*begun), Instant(10 * number))
        for number, (has_left, begun) in enumerate(beats, 1)
    ]


def test_with_nothing_under_way_it_ends_at_once() -> None:
    assert ends((True, ())) == [True]


def test_it_waits_for_what_it_had_sent_and_not_for_what_it_sends_meanwhile() -> None:
    assert ends((True, (8, 9)), (True, (9, 19)), (True, (28, 29))) == [False, False, True]


def test_one_that_is_engaged_again_begins_anew() -> None:
    assert ends((True, (8,)), (False, ()), (True, (29,)), (True, (31,))) == [False, False, False, True]


@pytest.mark.parametrize("is_lent", [False, True])
def test_one_that_leaves_by_itself_stays_for_its_home_and_for_the_end_that_may_follow(is_lent: bool) -> None:
    parting, channel = Parting(is_lent=is_lent), Sent()
    leaves, awaits = host(leaves_itself=not is_lent), host(leaves_itself=not is_lent, stop_requested=True)
    at = [Instant(0), Instant(ITSELF_STAYS - 1), Instant(2 * ITSELF_STAYS), Instant(2 * ITSELF_STAYS + 1)]
    hosts = [leaves, leaves, awaits, leaves]
    told: list[Any] = [parting.is_over(each, channel, now) for each, now in zip(hosts, at, strict=True)]  # type: ignore[arg-type]
    assert told == [False, False, False, True]
    assert Parting().is_over(host(stop_requested=True), channel, Instant(0))  # type: ignore[arg-type]
