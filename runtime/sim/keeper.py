"""The keeper: stands for the daemons of a universe's machines. It starts hosts, restarts them, and tells who is live.

Decides incarnations, restarts and moves as the daemon of a run's home and its outposts do, with the same membership
core, over messages that take the weather's ways: what cannot get through is lost, and all is said again and again.

Theory of operation. Home has a *wish* for every replica: the life that is to be, and where. An order to a machine says
all wishes for it, and the roster; the machine (a `Site`) kills what it was not told to have, starts what it lacks, and
reports what lives there, what has ended, and who was heard. A life that ended is followed by the next one, after a
back-off. One that is silent for too long is wished for no more: it is killed where it is, as soon as an order gets
there, and its next life follows that; only what is not bound to its machine, and whose machine is not heard of, is
started at home at once. Its former life may then live on behind a partition, which is what versions guard against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.control import HEARTBEAT_SECONDS
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.inline import VirtualClock
from isthmus.runtime.lives import BACKOFF_SECONDS, HEALTHY_SECONDS, SERVING
from isthmus.runtime.meetings import Row
from isthmus.runtime.membership import MembershipCore
from isthmus.runtime.patience import MembershipOptions
from isthmus.runtime.presence import (
    HeartbeatArrived,
    HostAnnounced,
    HostEnded,
    MembershipEvent,
    MembershipTimerFired,
    Phase,
    RemoveMember,
    SetMembershipTimer,
)
from isthmus.runtime.sim.life import Life
from isthmus.runtime.sim.weather import Weather

PATIENCE: Final = seconds(20)
PHI_GONE: Final = 300.0
UNHEARD: Final = seconds(5)
"""Silence of a machine after which what is not bound to it is moved away."""
BOUND: Final = frozenset({"learner"})
"""Roles whose replicas belong to their machine."""


@dataclass(slots=True)
class Report:
    """What a machine says: who lives there, with phase, endpoints and how often it was heard; and who has ended."""

    lives: list[tuple[Member, Phase, list[str], int]]
    ended: dict[Member, str]


@dataclass(slots=True)
class Site:
    """A machine: its processes, and what it was told last; `is_dark` while it has no power."""

    name: str
    lives: dict[Replica, Life] = field(default_factory=dict)
    starting: set[Member] = field(default_factory=set)
    ended: dict[Member, str] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    order_last: int = 0
    is_dark: bool = False

    def report(self) -> Report:
        """What it says now."""
        lives = [(life.member, _phase(life), life.endpoints, life.beats) for life in self.lives.values()]
        return Report(lives, dict(self.ended))


class Keeper:
    """Of a run with `counts` replicas, each at first on the machine that `places` says; `addresses` are those of the
    machines, by name; `launch` makes the life of a member there, and `boot` says how many seconds that takes."""

    def __init__(
        self,
        clock: VirtualClock,
        weather: Weather,
        *,
        places: Mapping[Replica, str],
        addresses: Mapping[str, str],
        home: str,
        launch: Callable[[Member, str], Life],
        boot: Callable[[Member], float],
        joining: Sequence[Replica] = (),
    ) -> None:
        self.home = home
        self.is_stopping = False
        self.wishes: dict[Replica, Member] = {}
        self.places = dict(places)
        self.sites = {name: Site(name) for name in addresses}
        slots: dict[str, int] = {}
        for replica in (*places, *joining):
            slots[replica.role] = max(slots.get(replica.role, 0), replica.slot + 1)
        self.core = MembershipCore(
            MembershipOptions(
                slots_max=slots,
                phi_gone=PHI_GONE,
                interval_first=seconds(HEARTBEAT_SECONDS),
                deviation_first=seconds(1),
                silence_max=PATIENCE,
            )
        )
        self._clock, self._weather, self._addresses = clock, weather, addresses
        self._launch, self._boot = launch, boot
        self._newest: dict[Replica, int] = {}
        self._failures: dict[Replica, int] = {}
        self._began: dict[Member, Instant] = {}
        self._known: dict[Member, tuple[list[str], int]] = {}
        self._ended: set[Member] = set()
        self._heard_at = dict.fromkeys(addresses, Instant(0))
        self._orders = 0

    def start(self) -> None:
        """Start every replica."""
        for replica in self.places:
            self._wish(replica)
        self._beat()

    def join(self, replica: Replica, machine: str) -> None:
        """A replica is wanted that was not there, on a machine that was idle."""
        self.places[replica] = machine
        self._wish(replica)

    def request_stop(self) -> None:
        """Ask every host to bring the run to its end."""
        self.is_stopping = True
        self._order_all()

    def kill(self, life: Life, reason: str = "killed by signal SIGKILL") -> None:
        """A process ends; the daemon of its machine sees it at once."""
        site = self.sites[life.machine]
        life.kill()
        del site.lives[life.member.replica]
        site.ended[life.member] = reason
        self._report(site)

    def darken(self, name: str) -> None:
        """A machine has no power from now on. Home still decides, as it would once it is back: from its ledger."""
        site = self.sites[name]
        site.is_dark = True
        for life in list(site.lives.values()):
            self.kill(life, "ended with the power of its machine")

    def lighten(self, name: str) -> None:
        """It has power again."""
        self.sites[name].is_dark = False
        self._report(self.sites[name])

    # -- home ----------------------------------------------------------------------------------------------------------

    def _wish(self, replica: Replica) -> None:
        """Want the next life of a replica."""
        self._newest[replica] = self._newest.get(replica, 0) + 1
        self.wishes[replica] = Member(replica, self._newest[replica])
        self._order_all()

    def _beat(self) -> None:
        """Say everything again."""
        for site in self.sites.values():
            self._report(site)
        self._order_all()
        self._clock.call_at(Instant(self._clock.now() + seconds(HEARTBEAT_SECONDS)), self._beat)

    def _roster(self) -> list[Row]:
        return [
            [str(member.replica), member.incarnation, self._known[member][0], self.places[member.replica]]
            for member, _, _ in self.core.roster()
        ]

    def _order_all(self) -> None:
        rows = self._roster()
        self._orders += 1
        for name in self.sites:
            wishes = {replica: wish for replica, wish in self.wishes.items() if self.places[replica] == name}
            self._post(self.home, name, partial(self._obey, name, self._orders, rows, wishes, self.is_stopping))

    def _hear(self, name: str, report: Report) -> None:
        self._heard_at[name] = self._clock.now()
        for member, phase, endpoints, beats in report.lives:
            if self.wishes.get(member.replica) != member:
                continue
            known = self._known.get(member)
            self._known[member] = endpoints, max(beats, known[1] if known else 0)
            if phase in SERVING:
                self._began.setdefault(member, self._clock.now())
            if known is None:
                self._handle(HostAnnounced(member, phase))
                self._order_all()
            elif beats > known[1]:
                self._handle(HeartbeatArrived(member, phase))
        for member, reason in report.ended.items():
            if member not in self._ended:
                self._ended.add(member)
                self._handle(HostEnded(member, reason))
                self._follow(member)

    def _follow(self, member: Member) -> None:
        """Let the next life of a replica begin, in time."""
        replica = member.replica
        if member.incarnation != self._newest[replica]:
            return
        self.wishes.pop(replica, None)
        began = self._began.get(member)
        is_healthy = began is not None and self._clock.now() - began >= seconds(HEALTHY_SECONDS)
        failures = self._failures[replica] = 1 if is_healthy else self._failures.get(replica, 0) + 1
        delay = seconds(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1])
        self._clock.call_at(Instant(self._clock.now() + delay), partial(self._wish, replica))
        self._order_all()

    def _handle(self, event: MembershipEvent) -> None:
        for command in self.core.handle(event, self._clock.now()):
            if isinstance(command, SetMembershipTimer):
                self._clock.call_at(command.at, partial(self._handle, MembershipTimerFired()))
            elif isinstance(command, RemoveMember):
                self._removed(command.member)

    def _removed(self, member: Member) -> None:
        """A member is live no more; one that was only silent is to be killed."""
        replica = member.replica
        if member not in self._ended and self.wishes.get(replica) == member:
            del self.wishes[replica]
            silent = self._clock.now() - self._heard_at[self.places[replica]]
            if replica.role not in BOUND and silent > UNHEARD and self.places[replica] != self.home:
                self.places[replica] = self.home
                self._wish(replica)
        self._order_all()

    # -- machines ------------------------------------------------------------------------------------------------------

    def _obey(
        self, name: str, number: int, rows: Sequence[Row], wishes: Mapping[Replica, Member], is_stopping: bool
    ) -> None:
        """An order arrives at a machine."""
        site = self.sites[name]
        if number <= site.order_last or site.is_dark:
            return
        site.order_last, site.rows = number, rows
        for life in [life for life in site.lives.values() if wishes.get(life.member.replica) != life.member]:
            self.kill(life, "killed: not wanted any more")
        for member in wishes.values():
            is_new = member not in site.ended and member not in site.starting
            if is_new and member.replica not in site.lives:
                site.starting.add(member)
                at = Instant(self._clock.now() + seconds(self._boot(member)))
                self._clock.call_at(at, partial(self._begin, site, member))
        for life in list(site.lives.values()):
            life.hear(rows, stop=is_stopping)

    def _begin(self, site: Site, member: Member) -> None:
        site.starting.discard(member)
        if site.is_dark:
            site.ended[member] = "ended with the power of its machine"
        elif member.replica not in site.lives:
            site.lives[member.replica] = self._launch(member, site.name)
            self._report(site)

    def _report(self, site: Site) -> None:
        if site.is_dark:
            return
        self._post(site.name, self.home, partial(self._hear, site.name, site.report()))

    def _post(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Send something from machine to machine; it is lost where the way is cut."""
        here, there = self._addresses[source], self._addresses[target]
        if not self._weather.is_cut(here, there):
            self._clock.call_at(Instant(self._clock.now() + self._weather.latency(here, there)), arrive)


def _phase(life: Life) -> Phase:
    told: Phase = life.phase  # type: ignore[assignment]
    return told
