"""Help to tell the core of a station a story: what orders, hosts and reports say, in short words."""

from __future__ import annotations

from typing import Any, Final

from isthmus.runtime.clock import Instant
from isthmus.runtime.supervision.messages import LONELY_BEATS, Gone, Heartbeat, Orders, Report, Seen, Stamp
from isthmus.runtime.supervision.rosters import RosterDifference, Row, Table
from isthmus.runtime.supervision.station import Station
from isthmus.runtime.supervision.station_events import (
    HostSpoke,
    LivesNoted,
    OrdersCame,
    ProcessStarted,
    SendReport,
    StationBeat,
    StationBegan,
    StationCommand,
    StationEvent,
    TellHosts,
)
from tests.runtime.supervision.supervision_stories import life, lives, rows, said, wanted

LEARNER, SYNCER = life("learner/0"), life("syncer/0")
ROSTER: Final = rows("learner/0 syncer/0")
BEAT: Final = StationBeat()
OVER: Final = Orders(is_over=True)


class StationStory:
    """A station that is told events. `at_home`: its home is in the same daemon."""

    def __init__(
        self, *, at_home: bool = False, began: StationBegan | None = None, lonely_beats: int = LONELY_BEATS
    ) -> None:
        self.core = Station(is_at_home=at_home, lonely_beats=lonely_beats)
        self.begun = self.tell(StationBegan() if began is None else began)

    def tell(self, *events: StationEvent) -> list[StationCommand]:
        """What events lead to."""
        commands: list[StationCommand] = []
        for event in events:
            commands += self.core.handle(event, Instant(0))
            self.core.check()
        return commands


def orders(text: str = "", number: int = 1, **more: Any) -> OrdersCame:
    """The `number`-th orders: to have these lives, and the roster as a whole where one is given."""
    roster = whole(more.pop("roster")) if isinstance(more.get("roster"), tuple) else more.pop("roster", None)
    return OrdersCame(Orders(wanted(text), roster, stamp=Stamp(1, 1, number), **more))


def mark_of(roster: tuple[Row, ...]) -> int:
    """The mark of a table with these rows."""
    table = Table()
    table.follow(roster)
    return table.mark


def whole(roster: tuple[Row, ...]) -> RosterDifference:
    """A roster as a whole."""
    return RosterDifference(mark_of(roster), None, roster)


def report(*told: Seen | Gone, newest: str = "", number: int = 1, holds: tuple[Row, ...] = ()) -> SendReport:
    """The home is told of these, and of the newest lives; a station tells what it has obeyed each time, and that it
    `holds` a roster."""
    there = tuple(each for each in told if isinstance(each, Seen))
    ended = tuple(each for each in told if isinstance(each, Gone))
    obeyed = Stamp(1, 1 if number else 0, number)
    return SendReport(Report(there, ended, lives(newest), obeyed, rostered=mark_of(holds)))


def there(text: str, beats: int = 0, pid: int = 4711, **more: Any) -> Seen:
    """A life that is there; it has said what `said` has, if it has spoken."""
    return Seen(life(text), pid, beats, heartbeat=said(text) if beats else Heartbeat(), **more)


def spoke(text: str, pid: int = 4711, **more: Any) -> HostSpoke:
    """A host says that it serves."""
    return HostSpoke(life(text), pid, said(text), **more)


def tell(text: str, roster: Any = None, **flags: Any) -> TellHosts:
    """What the hosts are told: rows, of the first version of a roster as a whole, or a change."""
    change = RosterDifference(1, None, roster) if isinstance(roster, tuple) else roster
    return TellHosts(lives(text), change, **{"is_stopping": False, "is_ending": False} | flags)


def same(version: int = 1) -> RosterDifference:
    """Nothing has changed since a version."""
    return RosterDifference(version, version)


def begun(text: str = "learner/0", *, at_home: bool = False) -> StationStory:
    """A station whose lives are there and have spoken once."""
    story = StationStory(at_home=at_home)
    story.tell(orders(text), LivesNoted(lives(text)))
    for member in lives(text):
        story.tell(ProcessStarted(member, 4711), spoke(str(member)))
    return story
