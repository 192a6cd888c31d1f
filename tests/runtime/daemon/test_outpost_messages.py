"""Orders and reports on their way between a home and its outposts: what is said is what is heard, and nothing else."""

from __future__ import annotations

from typing import Any, Final

import pytest

from isthmus.runtime.daemon.outpost import of_orders, of_report, over, read_orders, read_report
from isthmus.runtime.supervision.incidents import Exited, MachineLost
from isthmus.runtime.supervision.messages import Orders, Over, Report, Stamp
from isthmus.runtime.wire.control_messages import Message, decode, encode
from tests.runtime.supervision.supervision_stories import BOOM, gone, life, lives, moved, rows, seen, wanted

ORDERS: Final = (
    Orders(),
    Orders(
        wanted("learner/0#2 syncer/0!"),
        rows("learner/0#2 syncer/0@beta"),
        ("alpha", "beta"),
        is_stopping=True,
        is_ending=True,
        stamp=Stamp(2, 3, 77),
    ),
)
REPORTS: Final = (
    Report(),
    Report(
        (seen("learner/0#2", is_stopped=True, error=BOOM), seen("recorder/0", over=Over("no space"))),
        (gone("syncer/0", Exited(3), BOOM, 1.5, moved(7)), gone("learner/1", MachineLost("beta", 5))),
        lives("learner/0#2 syncer/0"),
        Stamp(2, 3, 77),
    ),
)
SHOWN: Final = {life("learner/0#2"): {"published": {"step": 7}, "figures": {"memory_bytes": 9}}}


def sent(message: Message) -> Message:
    """A message as it is received."""
    return decode(encode(message))


@pytest.mark.parametrize("orders", ORDERS)
def test_orders_are_heard_as_they_were_given(orders: Orders) -> None:
    assert read_orders(sent(of_orders(orders, {"beta": "key"}))) == (orders, {"beta": "key"})


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_is_heard_as_it_was_made(report: Report) -> None:
    assert read_report(sent(of_report(report, SHOWN))) == (report, SHOWN)


def test_a_machine_that_is_not_needed_is_told_that_all_is_over() -> None:
    orders, keys = read_orders(sent(over("alpha", 3)))
    assert (orders, keys) == (Orders(is_over=True, stamp=Stamp(3), home="alpha"), {})


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"report": [], "shown": None},
        {"report": [], "shown": [["learner/0", 1]]},
        {"report": [], "shown": [["learner", 1, {"published": {}, "figures": {}}]]},
        {"report": [], "shown": [["learner/0", 1, {"published": {}}]]},
        {"report": [["learner/0"]], "shown": []},
        {"report": {"lives": []}, "shown": []},
        {"report": [[[[["learner", 0], 1], 4711, "often"]]], "shown": []},
    ],
)
def test_what_is_no_report_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_report(message)


@pytest.mark.parametrize("phase", ["dancing", 7, None])
def test_a_phase_that_there_is_not_is_refused(phase: Any) -> None:
    message = sent(of_report(REPORTS[1], {}))
    message["report"][0][0][5][0] = phase
    with pytest.raises(ValueError, match="no report: "):
        read_report(message)


@pytest.mark.parametrize(
    "message", [{}, {"orders": None, "keys": {}}, {"orders": [[["learner/0"]]], "keys": {}}, {"orders": [], "keys": 7}]
)
def test_what_are_no_orders_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_orders(message)
