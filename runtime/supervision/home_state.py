"""The state of a home, and the commands that it is about to return; the parts of the core decide, this only stores."""

from __future__ import annotations

from dataclasses import dataclass, field

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member, Replica, leads_island
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.elastic import ElasticIsland
from isthmus.runtime.supervision.fleet import Fleet
from isthmus.runtime.supervision.home_events import HomeCommand, Outcome, WriteIncident
from isthmus.runtime.supervision.liveness import HostLiveness, Reach, Repeats, Restarts, Service
from isthmus.runtime.supervision.messages import Form, Seen, Stamp
from isthmus.runtime.supervision.rosters import Table


@dataclass(slots=True)
class TrackedLife:
    """A tracked life that a station has seen, on `machine`.

    `is_starved`, `has_raised`, `has_compared`: such an incident is written once, whatever its station says in turns.
    """

    member: Member
    machine: str
    seen: Seen
    served_at: Instant | None = None
    beats_without_heartbeat: int = 0
    is_starved: bool = False
    has_raised: bool = False
    has_compared: bool = False
    user_since: Instant | None = None
    """Since when the user's code has its thread."""
    warned: set[str] = field(default_factory=set)
    """The settings by which its end was named."""
    returned: tuple[Instant, Duration] | None = None
    """When it came back from the user's code, and how long it was away, until that is recorded."""
    overwritten: int = 0
    """Its tokens that had been overwritten before it was away."""
    exits_since: Instant | None = None
    """Since when it could exit, in a run that is over."""
    has_told_first: bool = False
    """Whether it was said that it has not made a first step for long."""
    verdict: incidents.Verdict | None = None
    refusals: dict[tuple[Replica, str], int] = field(default_factory=dict)
    """Counts of its refused items, by refusing replica and edge."""
    accusers: set[str] = field(default_factory=set)
    """The machines of hosts that have refused too many of them."""


@dataclass(frozen=True, slots=True)
class Aside:
    """A home was asked, at an instant, to have its hosts leave `within` a duration."""

    at: Instant
    within: Duration


@dataclass(frozen=True, slots=True)
class GangEnd:
    """The end of an island of several processes: how the first of these ended, since when the leader had served, and
    why that has left by itself, if it has."""

    ended: incidents.Ended
    served_at: Instant | None
    left: incidents.LoopLeft | incidents.DataSpent | None = None


@dataclass(slots=True)
class RunState:
    """The state of one run."""

    fleet: Fleet
    liveness: HostLiveness
    now: Instant
    stamp: Stamp
    lives: dict[Replica, TrackedLife] = field(default_factory=dict)
    restarts: Restarts = field(default_factory=Restarts)
    repeats: Repeats = field(default_factory=Repeats)
    reach: Reach = field(default_factory=Reach)
    service: Service = field(default_factory=Service)
    newest: dict[Replica, int] = field(default_factory=dict)
    """The newest number of a life of each replica."""
    noting: set[Replica] = field(default_factory=set)
    """Replicas whose next number is being recorded."""
    floor: int = 0
    """Numbers of lives are above it."""
    number_known: int = 0
    """The highest number that the home has recorded."""
    is_unsure: bool = False
    """The ledger was lost, and the running lives are not known yet."""
    is_taking: bool = False
    """The ledger was that of another home, which was lost."""
    adopting: set[Replica] = field(default_factory=set)
    """Replicas that a daemon which took over waits for."""
    adopt_until: Instant | None = None
    """How long it waits for them."""
    due: dict[Replica, Instant] = field(default_factory=dict)
    """When the next life of a replica begins."""
    gang_ends: dict[Replica, GangEnd] = field(default_factory=dict)
    """The islands, by their leaders, whose last processes are about to end."""
    reasons: dict[Replica, incidents.Incident] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    outcome: Outcome = "running"
    failure: incidents.Failure | None = None
    is_stopping: bool = False
    is_ending: bool = False
    is_finished: bool = False
    aside: Aside | None = None
    """This daemon is to end, and the next goes on: since when, and within what time."""
    is_dismissing: bool = False
    """The run is over, and no script is waited for any more."""
    dismissed: set[Replica] = field(default_factory=set)
    """Replicas whose scripts were not waited for."""
    finished: set[Replica] = field(default_factory=set)
    """Of a run that is over, replicas whose scripts have come to their end."""
    unfinished: dict[Replica, incidents.Ended] = field(default_factory=dict)
    """Those whose scripts will not, with their last ends."""
    has_given_way: bool = False
    """Another machine is the home, and this one knows."""
    exit_at: Instant | None = None
    abandon_at: Instant | None = None
    islands: list[ElasticIsland] = field(default_factory=list)
    """The elastic ones."""
    roster: Table = field(default_factory=Table)
    """The rows that hosts are told."""
    commands: list[HomeCommand] = field(default_factory=list)
    has_news: bool = False
    """Orders must be sent."""
    has_changed: bool = False
    """The journal must be written."""

    def write(self, member: Member, incident: incidents.Incident) -> None:
        """Record an incident; it explains the state of its host from now on."""
        self.reasons[member.replica] = incident
        self.commands.append(WriteIncident(member, incident))

    def stop(self) -> None:
        """Ask the hosts to bring the run to its end."""
        if not self.is_stopping:
            self.is_stopping = self.has_changed = True
        self.has_news = True

    def condemn(self, member: Member, verdict: incidents.Verdict | None) -> None:
        """Have a life killed, so that the next can take its place."""
        life, machine = self.lives.get(member.replica), self.fleet.of(member.replica)
        if not machine.has(member) or member.replica in machine.condemned:
            return
        machine.condemned.add(member.replica)
        self.has_news = True
        if life is not None and verdict is not None:
            life.verdict = verdict
            self.write(member, incidents.Condemned(verdict))

    def after(self, duration: Duration) -> Instant:
        """The instant `duration` from now."""
        return Instant(self.now + duration)

    def __post_init__(self) -> None:
        self.recall_forms(())

    def recall_forms(self, forms: tuple[Form, ...]) -> None:
        """Restore the elastic islands of a former daemon."""
        form_of = {form.leader: form for form in forms}
        elastic = self.fleet.elastic.items()
        self.islands = [ElasticIsland(self.fleet.gang(each), sizes, form_of.get(each)) for each, sizes in elastic]

    @property
    def forms(self) -> tuple[Form, ...]:
        """The newest form of each elastic island."""
        return tuple(island.form for island in self.islands if island.form is not None)

    @property
    def is_set_aside(self) -> bool:
        """Whether this daemon is to end, and the next goes on."""
        return self.aside is not None

    @property
    def learners(self) -> list[TrackedLife]:
        """The lives of learners that stations have seen."""
        return [life for life in self.lives.values() if leads_island(life.member.replica)]

    @property
    def is_coming_to_its_end(self) -> bool:
        """Whether the last rounds are on: a stop was requested, or most learners or a host of the home are `final`."""
        final = [life.member.replica for life in self.lives.values() if life.seen.heartbeat.phase == "final"]
        learners = [replica for replica in final if leads_island(replica)]
        is_told = any(self.fleet.accuser(replica) == self.fleet.home for replica in final if not leads_island(replica))
        is_most = 2 * len(learners) > len(self.learners) and self.fleet.speak_for_all(learners)
        return self.is_stopping or is_told or is_most
