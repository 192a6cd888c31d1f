"""The outpost of a run on a machine that is not its home: its station there, on a link to the home.

It decides nothing. Its hosts connect to it on loopback, as they would to the daemon of their home. The functions encode
orders and reports as control messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.daemon.ground import Ground
from isthmus.runtime.daemon.host_endpoint import Shown
from isthmus.runtime.daemon.site import Site
from isthmus.runtime.errors import shortened
from isthmus.runtime.ids import Member
from isthmus.runtime.supervision.incidents import Raised
from isthmus.runtime.supervision.messages import (
    BEAT_SECONDS,
    FOUND_LENGTH_MAX,
    Orders,
    Published,
    Report,
    ReportError,
    ReportFault,
    Stamp,
    directory_of,
    orders_of,
    report_of,
    shown_of,
)
from isthmus.runtime.supervision.rosters import DirectoryDifference
from isthmus.runtime.supervision.station_events import FollowHome, TurnAway
from isthmus.runtime.wire.control_messages import Message, encode

SHOWN_BYTES_MAX: Final = 64 << 10
"""Size of one host's status: four times that of a learner with 64 fragments, and a sixty-fourth of a message."""
REPORT: Final = "report"
DIRECTORY: Final = "directory"
"""In orders what has changed of it, in a report the mark of the one that its machine holds."""
ORDERS: Final = "orders"


def of_orders(orders: Orders, directory: DirectoryDifference | None) -> Message:
    """A message with orders, and what has changed of the machines that take part."""
    return {"type": ORDERS, "orders": msgspec.to_builtins(orders), "directory": msgspec.to_builtins(directory)}


def read_orders(message: Mapping[str, Any]) -> tuple[Orders, DirectoryDifference | None]:
    """The contents of such a message; KeyError, TypeError or ValueError for one that no home of ours sends."""
    return orders_of(message["orders"]), directory_of(message["directory"])


def of_report(report: Report, shown: Mapping[Member, Shown]) -> Message:
    """A message with a report, and the hosts' status for people."""
    rows = [[msgspec.to_builtins(member), *_fitting(each)] for member, each in shown.items()]
    return {"type": REPORT, "report": msgspec.to_builtins(report), "shown": rows}


def without_texts(report: Report, machine: str) -> Report:
    """The report of a machine that keeps the texts of errors: all but these, and where they are.

    `over` has a text, too, but only a recorder's, which is at home.
    """
    lives = tuple(replace(seen, error=_kept(seen.error, machine, seen.member)) for seen in report.lives)
    ended = tuple(replace(gone, error=_kept(gone.error, machine, gone.member)) for gone in report.ended)
    return replace(report, lives=lives, ended=ended)


def _kept(error: Raised | None, machine: str, member: Member) -> Raised | None:
    return None if error is None else error.kept_on(machine, str(member.replica))


def read_report(message: Mapping[str, Any]) -> tuple[Report, dict[Member, Shown]]:
    """The contents of such a message; ReportError for one that no outpost of ours sends.

    Nothing else reads what another machine reports: the types of `messages` bound all of it.
    """
    shown: dict[Member, Shown] = {
        each.member: {"published": each.published, "figures": msgspec.to_builtins(each.figures)}
        for each in shown_of(message.get("shown"))
    }
    sizes = {member: len(encode({"type": "shown", **each})) for member, each in shown.items()}
    if large := next((member for member, size in sizes.items() if size > SHOWN_BYTES_MAX), None):
        expected, found = f"at most {SHOWN_BYTES_MAX} bytes for a host", f"{sizes[large]} of {large}"
        raise ReportError(ReportFault("shown", expected, shortened(found, FOUND_LENGTH_MAX)))
    return report_of(message.get("report")), shown


def _fitting(shown: Shown) -> tuple[Any, Any]:
    """The figures of a host and what its bodies publish, which is left out where it is too large, or of another form:
    bodies are the user's."""
    figures, published = dict(shown["figures"]), dict(shown["published"])
    try:
        msgspec.convert(published, Published)
    except msgspec.ValidationError:
        published = {}
    is_small = len(encode({"type": "shown", "figures": figures, "published": published})) <= SHOWN_BYTES_MAX
    return figures, published if is_small else {}


def over(home: str, term: int) -> Message:
    """Orders of a home, in that term, that release a machine."""
    return of_orders(Orders(is_over=True, stamp=Stamp(term), home=home), None)


class Outpost:
    """The part of a run on this machine.

    Arguments:
        ground: where its hosts run.
        run: the run's name.
        name: this machine.
        home: the machine that is the run's home at first.
        term: the term of that home.
        send: sends a message to the home that it follows, and may lose it.
        follow: performs the command to follow another home.
        turn_away: performs the command to turn one away.
        lonely_seconds: without orders for so long it ends its hosts.
        on_over: called once, when every process has ended for good.
        keeps_texts: no text of an error leaves.
        is_far: the way to the home leads through a bucket.
    """

    def __init__(
        self,
        ground: Ground,
        *,
        run: str,
        name: str,
        home: str,
        term: int,
        send: Callable[[Message], None],
        follow: Callable[[FollowHome], None],
        turn_away: Callable[[TurnAway], None],
        lonely_seconds: float,
        on_over: Callable[[], None],
        keeps_texts: bool,
        is_far: bool = False,
    ) -> None:
        """Serve hosts; raises what the ground's `serve` raises."""
        self.folder, self.run = ground.folder, run
        self._ground, self._is_closed = ground, False
        self._name, self.keeps_texts, self._send, self._is_far = name, keeps_texts, send, is_far
        self._site = Site(
            ground,
            run=run,
            is_at_home=False,
            home=home,
            term=term,
            follow=follow,
            turn_away=turn_away,
            lonely_beats=round(lonely_seconds / BEAT_SECONDS),
            report=self._report,
            on_over=on_over,
        )

    def start(self) -> None:
        """Publish this outpost's endpoint, and adopt the hosts that live here."""
        self._site.start()
        self._beat()

    def call(self, home: str, term: int) -> None:
        """A machine claims to be the home of the run."""
        self._site.call(home, term)

    def listening(self) -> list[str]:
        """The endpoints at which hosts listen here."""
        return self._site.listening()

    def relayed(self) -> dict[str, list[str]]:
        """Host here -> the hosts that a porter relays to it."""
        return self._site.relayed()

    def full(self) -> list[str]:
        """The disks here, by where they are mounted, that have no room for what is written."""
        return self._site.full()

    def status(self) -> dict[str, Any]:
        """The hosts here, with their figures, and what is not known at home alone."""
        hosts = [
            {
                "name": str(member.replica),
                "role": member.replica.role,
                "machine": self._name,
                "incarnation": member.incarnation,
                "state": "alive",
                **each["figures"],
                "published": each["published"],
            }
            for member, each in self._site.shown.items()
        ]
        return {"run": self.run, "hosts": hosts}

    def order(self, home: str, message: Mapping[str, Any]) -> None:
        """Handle orders of a machine that claims to be the home; KeyError, TypeError or ValueError for invalid ones."""
        orders, directory = read_orders(message)
        if orders.home != home:
            raise ValueError(f"orders of {orders.home[:100]!r}, given by {home!r}")
        self._site.order(orders, directory)

    def leave(self, seconds_max: float) -> None:
        """Let hosts give what they have within so many seconds, end them, then be over."""
        self._site.ask_leave(seconds_max)

    def end(self) -> None:
        """End every host, then be over."""
        self._site.leave()

    def close(self) -> None:
        """Release everything; the hosts, if any are left, go on."""
        self._is_closed = True
        self._site.close()

    def _report(self, report: Report, shown: Mapping[Member, Shown]) -> None:
        leaving = without_texts(report, self._name) if self.keeps_texts else report
        told = {"run": self.run, DIRECTORY: self._site.directory_mark}
        self._send({**of_report(replace(leaving, is_far=self._is_far), shown), **told})

    def _beat(self) -> None:
        if not self._is_closed:
            self._site.beat()
            self._ground.flush()
            self._ground.clock.call_at(Instant(self._ground.clock.now() + seconds(BEAT_SECONDS)), self._beat)
