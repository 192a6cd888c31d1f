"""What a home and its station send to the hosts of a run while many learners start, and what that costs the daemon.

    python -m tests.bench.bench_rosters [--learners 64 256 1024] [--shards 4] [--a-second 20] [--json]

The cores of a home and of its station, with their tapes, and the endpoint of its hosts, in one thread, without
processes and sockets. So many learners a second have a process and speak; each host says four times a second what a
host says; a beat comes twice a second. Of every message that is sent to a host the encoded bytes are counted, and the
rows of rosters in it. `daemon_seconds` are the CPU seconds of all this, hosts' words decoded, as one core has them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from isthmus.runtime.clock import Instant, milliseconds, seconds
from isthmus.runtime.daemon.ground import Handler
from isthmus.runtime.daemon.host_endpoint import HostEndpoint, Shown
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.driver import Driver
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import (
    HomeBeat,
    HomeBegan,
    NoteLives,
    Places,
    ReportCame,
    RunRoles,
    SendOrders,
)
from isthmus.runtime.supervision.messages import NOBODY
from isthmus.runtime.supervision.station import Station
from isthmus.runtime.supervision.station_events import (
    HostSpoke,
    LivesNoted,
    OrdersCame,
    ProcessStarted,
    SendReport,
    StartProcess,
    StationBeat,
    StationBegan,
    TellHosts,
)
from isthmus.runtime.wire.control_messages import Message, decode, encode

HOME: Final = "alpha"
HEARTBEAT, BEAT = milliseconds(250), milliseconds(500)
OTHERS: Final = {"syncer": ("learner", "syncer", "evaluator", "recorder"), "evaluator": ("syncer", "recorder"),
                 "recorder": ("learner", "syncer", "evaluator")}  # fmt: skip
LEARNERS_MEET: Final = ("syncer", "recorder")


class CountingServer:
    """An endpoint that counts what is sent, by peer."""

    endpoint = "ipc:///nowhere"

    def __init__(self, handle: Handler) -> None:
        self.refused: Counter[str] = Counter()
        self.handle = handle
        self.sent_bytes: Counter[bytes] = Counter()
        self.rows: Counter[bytes] = Counter()

    def send(self, peer: bytes, message: Message) -> None:
        self.sent_bytes[peer] += len(encode(message))
        roster = message.get("roster")
        if roster is not None:
            self.rows[peer] += len(roster[2])

    def restore(self) -> None:
        """Nothing is bound."""

    def close(self) -> None:
        """Likewise."""


class StartingRun:
    """A run whose learners start, so many a second."""

    def __init__(self, learners: int, shards: int, a_second: float) -> None:
        self.now, self.every = Instant(0), round(1e9 / a_second)
        self.waiting: list[Member] = []
        self.living: list[Member] = []
        self.servers: list[CountingServer] = []
        roles = {"syncer": shards, "evaluator": 1, "recorder": 1, "learner": learners}
        self.home, self.station = Home(RunRoles(roles=roles), Places(home=HOME)), Station(is_at_home=True)
        self.of_home = Driver(self.home, self._for_run, lambda: self.now)
        self.of_station = Driver(self.station, self._here, lambda: self.now)
        self.endpoint = HostEndpoint(self._serve, "run", self._spoke, {})
        self.of_station.feed(StationBegan())
        self.of_home.feed(HomeBegan())
        self.hosts = learners + shards + 2

    def _serve(self, handle: Handler) -> CountingServer:
        self.servers.append(CountingServer(handle))
        return self.servers[-1]

    def _spoke(self, event: HostSpoke, shown: Shown) -> None:
        self.of_station.feed(event)

    def _for_run(self, command: Any) -> None:
        if isinstance(command, NoteLives):
            self.of_home.feed(LivesNoted(command.members))
        elif isinstance(command, SendOrders):
            for _, orders in command.by_machine():
                self.of_station.feed(OrdersCame(orders))

    def _here(self, command: Any) -> None:
        match command:
            case NoteLives():
                self.of_station.feed(LivesNoted(command.members))
            case StartProcess():
                is_first = command.member.replica.role != "learner"  # So that these hear of all learners.
                self.waiting.insert(0 if is_first else len(self.waiting), command.member)
            case TellHosts():
                self.endpoint.tell(command, NOBODY)
            case SendReport():
                self.of_home.feed(ReportCame(HOME, command.report))

    def _say(self, member: Member) -> None:
        replica = member.replica
        others = OTHERS.get(replica.role, LEARNERS_MEET)
        meets = [[replica.role, replica.slot, 0], *([role, 0, 1] for role in others)]
        listens = replica.role != "learner"
        endpoints = [f"tcp://10.0.0.1:{40_000 + 2 * replica.slot + each}" for each in (0, 1)] if listens else []
        phase = "serving" if listens else "stepping"
        figures: dict[str, Any] = {"steps": 7, "busy_ns": 10**9, "cpu_seconds": 1.5, "peers": 5, "unreached": 0}
        said = {"type": "heartbeat", "run": "run", "replica": str(replica), "incarnation": member.incarnation,
                "pid": 4711, "phase": phase, "endpoints": endpoints, "figures": figures,
                "published": {"inner-step": {"step": 7, "phase": phase}}, "meets": meets, "asks": 0}  # fmt: skip
        self.servers[0].handle(str(member).encode(), decode(encode(said)))

    def start(self) -> None:
        """Let time pass until every host lives, and a second more."""
        due: dict[Instant, list[Callable[[], None]]] = defaultdict(list)
        due[Instant(BEAT)].append(self._beat)
        ends, begun = None, 0
        while ends is None or self.now < ends:
            if begun < self.hosts and self.now >= begun * self.every and self.waiting:
                member = self.waiting.pop(0)
                self.of_station.feed(ProcessStarted(member, 5000 + begun))
                self.living.append(member)
                begun += 1
                if begun == self.hosts:
                    ends = Instant(self.now + seconds(1))
                self._speak(due, member)
            for each in due.pop(self.now, ()):
                each()
                if each == self._beat:
                    due[Instant(self.now + BEAT)].append(self._beat)
            self.now = min([*due, Instant(begun * self.every)]) if begun < self.hosts else min(due)
            for driver in (self.of_home, self.of_station):
                driver.tape.drain()

    def _speak(self, due: Mapping[Instant, list[Callable[[], None]]], member: Member) -> None:
        def speak() -> None:
            self._say(member)
            due[Instant(self.now + HEARTBEAT)].append(speak)

        speak()

    def _beat(self) -> None:
        self.of_station.feed(StationBeat())
        self.of_home.feed(HomeBeat())


def measured(learners: int, shards: int, a_second: float) -> dict[str, Any]:
    """The figures of one start."""
    before = time.process_time()
    run = StartingRun(learners, shards, a_second)
    run.start()
    spent, server = time.process_time() - before, run.servers[0]
    about: dict[str, Any] = {"learners": learners, "shards": shards, "seconds": run.now / 1e9, "daemon_seconds": spent}
    for role, count in (("learner", learners), ("syncer", shards)):
        peers = [str(Member(Replica(role, slot), 1)).encode() for slot in range(count)]
        about[f"{role}_bytes_most"] = max(server.sent_bytes[peer] for peer in peers)
        about[f"{role}_rows_most"] = max(server.rows[peer] for peer in peers)
    about["rows_of_a_shard_per_learner"] = about["syncer_rows_most"] / learners
    return about


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--learners", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--a-second", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = [measured(count, given.shards, given.a_second) for count in given.learners]
    if given.json:
        print(json.dumps(figures))
        return
    for each in figures:
        print(
            "  ".join(
                f"{name} {value:,.2f}" if isinstance(value, float) else f"{name} {value:,}"
                for name, value in each.items()
            )
        )


if __name__ == "__main__":
    main()
