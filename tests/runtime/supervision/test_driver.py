"""The driver of a core: events one at a time, commands in their order, and a tape from which a core says the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.errors import CoreSubject, InvariantError, LocalProtocolError
from isthmus.runtime.supervision.driver import Driver, HomeRecord, StationRecord, replay
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import EndAsked, HomeBeat, HomeBegan, MachineTakenAway
from isthmus.runtime.supervision.incidents import Exited, Ordered
from isthmus.runtime.supervision.station import Station
from isthmus.runtime.tape.last_events import concerns
from isthmus.runtime.tape.reading import read
from isthmus.runtime.tape.writing import joined
from tests.runtime.supervision.supervised_world import World
from tests.runtime.supervision.supervision_stories import CAST, KILLED, PLACES

LEFT = MachineTakenAway("beta", "left")


class Echo:
    """A core that answers an event with commands that name it."""

    def __init__(self) -> None:
        self.handled: list[tuple[Any, Instant]] = []

    def handle(self, event: Any, now: Instant) -> list[Any]:
        self.handled.append((event, now))
        return [f"{event} first", f"{event} second"]

    def saved(self) -> bytes:
        return b""

    def check(self) -> None:
        pass


def driver(perform: Callable[[Any], None]) -> tuple[Driver, Echo]:
    """A driver of an echo, whose clock goes one further each time."""
    core, ticks = Echo(), iter(range(100))
    return Driver(core, perform, lambda: Instant(next(ticks))), core


def test_commands_are_performed_in_their_order() -> None:
    done: list[Any] = []
    told, core = driver(done.append)
    told.feed("a")  # type: ignore[arg-type]
    told.feed("b")  # type: ignore[arg-type]
    assert done == ["a first", "a second", "b first", "b second"]
    assert core.handled == [("a", 0), ("b", 1)]


def test_what_happens_meanwhile_waits_until_all_commands_are_performed() -> None:
    done: list[Any] = []

    def perform(command: str) -> None:
        done.append(command)
        if command == "a first":
            told.feed("b")  # type: ignore[arg-type]
            told.feed("c")  # type: ignore[arg-type]
            done.append("fed")

    told, core = driver(perform)
    told.feed("a")  # type: ignore[arg-type]
    assert done == ["a first", "fed", "a second", "b first", "b second", "c first", "c second"]
    assert [now for _, now in core.handled] == [0, 1, 2]


def test_after_a_command_that_cannot_be_performed_nothing_is_left_over() -> None:
    done: list[Any] = []

    def perform(command: str) -> None:
        done.append(command)
        if command == "a first":
            told.feed("b")  # type: ignore[arg-type]
            raise OSError

    told, _ = driver(perform)
    with pytest.raises(OSError):
        told.feed("a")  # type: ignore[arg-type]
    told.feed("c")  # type: ignore[arg-type]
    assert done == ["a first", "c first", "c second"]


def eventful() -> World:
    """A run in which hosts die, a machine leaves, and which is ended."""
    world = World(CAST, PLACES)
    world.live(4)
    alpha, beta = world.home, world.computers["beta"]
    alpha.end_process(min(alpha.processes), KILLED)
    beta.end_process(min(beta.processes), Exited(1))
    world.live(30, without="beta")
    world.live(30)
    world.tell_home(MachineTakenAway("beta", "left"))
    world.live(10)
    world.tell_home(EndAsked(Ordered("enough")))
    world.live(20)
    return world


def test_a_broken_core_comes_with_the_last_events_of_the_replica_that_it_is_about() -> None:
    world = eventful()
    daemon = world.home.daemon
    assert daemon is not None
    replica, newest = next(iter(daemon.home._run.newest.items()))
    records = read(joined(daemon.of_home.tape.drain()), HomeRecord).records
    about = (CoreSubject("replica", replica),)
    doing = [[each for each in record.commands if concerns(each, about)] for record in records]
    daemon.home.fleet.machines["alpha"].tracked[replica] = newest + 1
    with pytest.raises(InvariantError) as broken:
        daemon.of_home.check()
    assert broken.value.about == about
    last = max(number for number, commands in enumerate(doing) if commands)
    assert any(line.startswith(f"at {records[last].at} ns: ") for line in broken.value.last_events)
    assert len(broken.value.last_events) > 1


def test_a_core_that_refuses_an_event_tells_what_came_before_it() -> None:
    class Refusing(Echo):
        def handle(self, event: Any, now: Instant) -> list[Any]:
            if isinstance(event, HomeBeat):
                raise LocalProtocolError("broken")
            return []

    refusing = Driver(Refusing(), lambda command: None, lambda: Instant(0))
    refusing.feed(LEFT)
    with pytest.raises(LocalProtocolError) as refused:
        refusing.feed(HomeBeat())
    assert refused.value.last_events == (f"at 0 ns: {LEFT}", f"now: {HomeBeat()}")


def test_a_fresh_home_says_from_the_tape_what_the_first_one_said() -> None:
    daemon = eventful().home.daemon
    assert daemon is not None
    records = read(joined(daemon.of_home.tape.drain()), HomeRecord).records
    assert isinstance(records[0].event, HomeBegan)
    assert len(records) > 100
    replay(Home(CAST, PLACES), records)


@pytest.mark.parametrize("name", ["alpha", "beta", "gamma"])
def test_a_fresh_station_says_from_the_tape_what_the_first_one_said(name: str) -> None:
    daemon = eventful().computers[name].daemon
    assert daemon is not None
    records = read(joined(daemon.of_station.tape.drain()), StationRecord).records
    assert len(records) > 100
    replay(Station(is_at_home=name == "alpha"), records)


def test_a_core_that_says_anything_else_is_found() -> None:
    daemon = eventful().home.daemon
    assert daemon is not None
    records = read(joined(daemon.of_home.tape.drain()), HomeRecord).records
    with pytest.raises(InvariantError, match=r"replay at 0 ns: after HomeBegan.* the tape has .*, this core says"):
        replay(Home(CAST, PLACES, patience=seconds(1)), [HomeRecord(Instant(0), HomeBegan(), []), *records])
