"""Orders and reports on their way between a home and its outposts: what is said is what is heard, and nothing else."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from isthmus.runtime.daemon.outpost import (
    SHOWN_BYTES_MAX,
    of_orders,
    of_report,
    over,
    read_orders,
    read_report,
    without_texts,
)
from isthmus.runtime.errors import shortened
from isthmus.runtime.ids import MachineOwner
from isthmus.runtime.supervision.incidents import Exited, MachineLost
from isthmus.runtime.supervision.messages import (
    Heartbeat,
    Orders,
    Over,
    Report,
    ReportError,
    Seen,
    Stamp,
)
from isthmus.runtime.supervision.rosters import DirectoryDifference, RosterDifference
from isthmus.runtime.wire.control_messages import Message, decode, encode
from tests.runtime.supervision.supervision_stories import BOOM, gone, life, lives, moved, rows, seen, wanted

ORDERS: Final = (
    Orders(),
    Orders(
        wanted("learner/0#2 syncer/0!"),
        RosterDifference(7, 5, rows("learner/0#2 syncer/0@beta"), ("learner/1",)),
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
KNOWN: Final = DirectoryDifference(9, 8, (("beta", "key", MachineOwner("ann", 0.25)), ("gamma", "", None)), ("delta",))
SHOWN: Final = {life("learner/0#2"): {"published": {"inner-step": {"step": 7}}, "figures": {"memory_bytes": 9}}}


def sent(message: Message) -> Message:
    """A message as it is received."""
    return decode(encode(message))


@pytest.mark.parametrize("orders", ORDERS)
def test_orders_are_heard_as_they_were_given(orders: Orders) -> None:
    assert read_orders(sent(of_orders(orders, KNOWN))) == (orders, KNOWN)


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_is_heard_as_it_was_made(report: Report) -> None:
    assert read_report(sent(of_report(report, SHOWN))) == (report, SHOWN)


def test_the_door_of_an_island_is_no_endpoint_that_others_dial() -> None:
    door = Seen(life("learner/0"), 1, 2, heartbeat=Heartbeat("compiling", door=("10.0.0.2:4711", "0a" * 16)))
    report = Report((door,))
    assert read_report(sent(of_report(report, {})))[0] == report
    for wrong in (("tcp://10.0.0.2:4711", "0a" * 16), ("10.0.0.2:4711", "a token"), ("10.0.0.2:0", "0a" * 16)):
        lie = replace(door, heartbeat=replace(door.heartbeat, door=wrong))
        with pytest.raises(ReportError):
            read_report(sent(of_report(Report((lie,)), {})))


def test_no_text_of_an_error_leaves_a_machine_that_keeps_it() -> None:
    secret = replace(BOOM, message="row 31 is of Jane")
    report = Report((seen("learner/0#2", error=secret), seen("learner/1")), (gone("learner/2", Exited(3), secret),))
    message = sent(of_report(without_texts(report, "beta"), SHOWN))
    assert b"Jane" in encode(of_report(report, SHOWN))
    assert b"Jane" not in encode(message)
    found, _ = read_report(message)
    assert found.lives[1] == report.lives[1]
    assert found.ended[0] == replace(report.ended[0], error=found.ended[0].error)
    for error, host in ((found.lives[0].error, "learner/0"), (found.ended[0].error, "learner/2")):
        assert error is not None
        assert (error.exception, error.file, error.line) == (BOOM.exception, BOOM.file, BOOM.line)
        assert error.mistake == secret.mistake
        assert error.kept is not None
        assert (error.kept.machine, error.kept.host) == ("beta", host)


def test_a_machine_that_is_not_needed_is_told_that_all_is_over() -> None:
    orders, directory = read_orders(sent(over("alpha", 3)))
    assert (orders, directory) == (Orders(is_over=True, stamp=Stamp(3), home="alpha"), None)


FIRST: Final = [["learner", 0], 1]
"""A member as plain data."""


def life_with(*heartbeat: Any, **fields: Any) -> list[Any]:
    """A report of one life as plain data, with these first fields of its heartbeat."""
    return [[[FIRST, fields.get("pid", 1), fields.get("beats", 1), False, fields.get("error"), list(heartbeat)]]]


HUGE: Final = 2**64 - 1
ONE: Final = "tcp://10.0.0.1:7"
FALSE: Final = (
    (None, [], "report", "`array`", "None"),
    ([["learner/0"]], [], "report.lives[0]", "`array`", "'learner/0'"),
    ({"lives": []}, [], "report", "`array`", "{'lives': []}"),
    (life_with(pid=-1), [], "report.lives[0].pid", "`int` >= 0", "-1"),
    (life_with(beats="often"), [], "report.lives[0].beats", "`int`", "'often'"),
    (life_with("dancing"), [], "report.lives[0].heartbeat.phase", None, "'dancing'"),
    (life_with("serving", [ONE]), [], "report.lives[0].heartbeat.endpoints", "`array` of length >= 2", f"['{ONE}']"),
    (life_with("serving", [ONE, "tcp://x:99999"]), [], "report.lives[0].heartbeat.endpoints[1]", None,
     "'tcp://x:99999'"),
    (life_with("serving", None, [1]), [], "report.lives[0].heartbeat.steps", "`int`", "[1]"),
    (life_with("serving", None, HUGE), [], "report.lives[0].heartbeat.steps", None, str(HUGE)),
    (life_with("serving", None, 1, -1), [], "report.lives[0].heartbeat.busy", "`int` >= 0", "-1"),
    (life_with("serving", None, 1, 1, 1, "x" * 501), [], "report.lives[0].heartbeat.node", None,
     shortened(repr("x" * 501), 100)),
    (life_with("serving", None, 1, 1, 1, "", float("nan")), [], "report.lives[0].heartbeat.cpu_seconds", None, "nan"),
    (life_with(error={"node": "", "exception": "", "message": "", "file": "", "line": -1}), [],
     "report.lives[0].error.line", "`int` >= 0", "-1"),
    ([[], [[FIRST, {"kind": "unseen"}, None, -0.5]]], [], "report.ended[0].cpu_seconds", None, "-0.5"),
    ([[], [[FIRST, {"kind": "eaten"}]]], [], None, None, None),
    ([[], [], [[["learner", -1], 1]]], [], "report.newest[0].replica.slot", "`int` >= 0", "-1"),
    ([[], [], [[["learner", 0], 0]]], [], "report.newest[0].incarnation", "`int` >= 1", "0"),
    ([[], [], [], [1, HUGE, 0]], [], "report.obeyed.epoch", None, str(HUGE)),
    ([], None, "shown", "`array`", "None"),
    ([], [[FIRST, {"memory_bytes": [1]}, {}]], "shown[0].figures.memory_bytes", None, "[1]"),
    ([], [[FIRST, {"name": "learner/1"}, {}]], "shown[0].figures", None, "{'name': 'learner/1'}"),
    ([], [[FIRST, {}, {"pacer": [1]}]], "shown[0].published[...]", "`object`", None),
    ([], [[FIRST, {}, {"pacer": {"interval": [[1]]}}]], None, None, None),
    ([], [[FIRST, {}, {"pacer": {"a": "x" * SHOWN_BYTES_MAX}}]], "shown", None, None),
)  # fmt: skip


@pytest.mark.parametrize(("report", "shown", "field", "expected", "found"), FALSE)
def test_a_report_with_a_false_field_is_refused_as_a_whole_and_the_field_named(
    report: Any, shown: Any, field: str | None, expected: str | None, found: str | None
) -> None:
    with pytest.raises(ReportError) as refused:
        read_report({"report": report, "shown": shown})
    fault = refused.value.fault
    assert (field or fault.field, expected or fault.expected, found or fault.found) == (
        fault.field, fault.expected, fault.found)  # fmt: skip


@pytest.mark.parametrize("published", [{"mine": {"a": {"b": {"c": 1}}}}, {"mine": {"a": "x" * SHOWN_BYTES_MAX}}])
def test_what_the_bodies_of_an_honest_machine_publish_never_costs_its_report(published: Any) -> None:
    told = {life("learner/0"): {"published": published, "figures": {"steps": 3}}}
    _, heard = read_report(sent(of_report(REPORTS[1], told)))
    assert heard == {life("learner/0"): {"published": {}, "figures": {"steps": 3}}}


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"orders": None, "directory": None},
        {"orders": [[["learner/0"]]], "directory": None},
        {"orders": [], "directory": 7},
    ],
)
def test_what_are_no_orders_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_orders(message)
