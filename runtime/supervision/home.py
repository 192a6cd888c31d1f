"""The core of a home: takes the events of a run, lets its parts decide, and returns all commands in order.

Theory of operation. A life is numbered, recorded, tracked on its machine, seen there by a report, heard, and gone. Its
end is followed by the next life, after a back-off (`liveness.Restarts`), on the machine where its replica was placed
or, once that is lost or removed, on one that offers its role. A learner belongs to the islands of its machine, and
waits for it. A member that is silent or stuck is condemned: its station kills it, and its end is then followed like any
other.

`lives` decides about beginnings and ends, `watch` about reports and verdicts, `fleet` about places. The stations of the
machines (`station`) manage the processes; home has one like any other machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, assert_never

from isthmus.runtime.clock import Duration, Instant, milliseconds
from isthmus.runtime.cores.membership_core import MembershipOptions
from isthmus.runtime.cores.membership_messages import Phase, Stall
from isthmus.runtime.errors import CoreSubject, demand
from isthmus.runtime.ids import COUNT_MAX, Member, Replica, gang_number, leads_island
from isthmus.runtime.supervision import incidents, lives, user_code, watch
from isthmus.runtime.supervision.fleet import Fleet, MachineLives
from isthmus.runtime.supervision.home_events import (
    BadReportCame,
    EndAsked,
    HomeBeat,
    HomeBegan,
    HomeCommand,
    HomeEvent,
    HomeTimerFired,
    IslandJoined,
    MachineJoined,
    MachineTakenAway,
    NotBegun,
    NoteJournal,
    Outcome,
    Places,
    ReportCame,
    RunRoles,
    ScriptSpoke,
    SendOrders,
    SetAside,
    SetHomeTimer,
    StopAsked,
    Taken,
    TurnedAway,
)
from isthmus.runtime.supervision.home_state import RunState, TrackedLife
from isthmus.runtime.supervision.liveness import HostLiveness
from isthmus.runtime.supervision.messages import Report, Stamp
from isthmus.runtime.supervision.rosters import RosterDifference, Row
from isthmus.runtime.supervision.station_events import LivesNoted, LivesNotNoted
from isthmus.runtime.tape.state import Kind

STATE: Final = Kind(("supervision", "cores", "ids"), arguments=(MembershipOptions,))
AT_ONCE_MAX: Final = 64
"""Machines to which orders go at once with each change."""
ORDER_TIME: Final = milliseconds(0.2)
"""From orders to more machines to the next ones, for each: four times what orders to one take, so that they are a
quarter of the home's time at most. Of 1,024 machines .2 s."""
_demand: Final = partial(demand, "supervision")


class Home:
    """The core of one run. `patience`, if given, is the longest wait for a silent host, and not what the run says."""

    def __init__(self, cast: RunRoles, places: Places, *, patience: Duration | None = None) -> None:
        fleet = Fleet(cast, places)
        liveness = HostLiveness(
            fleet.slots_max,
            cast.user.silent if patience is None else patience,
            lambda member: watch.excuse(self._run, member),
            lambda member: watch.described(self._run, member),
            stuck=cast.user.stuck,
        )
        self._run = RunState(fleet, liveness, Instant(0), Stamp(places.term, 1))
        self._timer_at: Instant | None = None
        self._orders_from = Instant(0)
        self._has_begun = False
        self._early: list[HomeEvent] = []

    def handle(self, event: HomeEvent, now: Instant) -> list[HomeCommand]:
        """Commands that follow from `event` at time `now`, in order of execution."""
        run = self._run
        if not self._has_begun and not isinstance(event, HomeBegan | NotBegun):
            # It knows of no life yet, and would have all of them killed. Stations repeat their reports.
            if not isinstance(event, ReportCame | BadReportCame | HomeBeat):
                self._early.append(event)
            return []
        self._has_begun = True
        run.now = Instant(max(now, run.now))  # Another machine's clock may be behind: waits never run backwards.
        run.commands = []
        self._dispatch(event)
        watch.form(run)  # By the lives that the event has left; before the journal, which has the forms.
        watch.finish_if_alone(run)
        if run.has_changed:  # Before anything else, so that the next daemon knows every decision carried out.
            run.commands.insert(0, NoteJournal(lives.journal_of(run)))
            run.has_changed = False
        if run.has_news and (
            run.now >= self._orders_from or run.is_finished
        ):  # After all decisions: they are complete.
            self._order()
        self._arm()  # Last: everything before it may make something due.
        return run.commands

    def _dispatch(self, event: HomeEvent) -> None:
        run = self._run
        match event:
            case HomeBegan():
                lives.begin(run, event)  # First: early requests are about the run that the records tell of.
                for early in self._early:
                    self._dispatch(early)
                self._early.clear()
            case ReportCame():
                self._on_report(event.machine, event.report)
            case BadReportCame():
                watch.refuse_report(run, event.machine, event.fault)
            case HomeBeat():
                self._beat()
            case HomeTimerFired():
                self._fire()
            case StopAsked():
                watch.stop(run)
            case EndAsked() | NotBegun():
                watch.end_run(run, "failed", event.failure)
            case SetAside():
                watch.set_aside(run, event.within)
            case ScriptSpoke():
                if event.member.replica in run.lives and not run.is_dismissing:
                    run.write(event.member, incidents.ScriptGoesOn())
            case MachineJoined():
                run.fleet.parties.know(event.parties)
                self._join([event.machine], lambda most: run.fleet.join(event.machine, min(event.islands, most)))
            case IslandJoined():
                run.fleet.parties.know(event.parties)
                self._join(event.machines, lambda most: run.fleet.join_island(event.machines))
            case MachineTakenAway():
                self._take_away(event.machine, event.how)
            case TurnedAway():
                lives.yield_home(run, event.by, event.term)
            case LivesNoted():
                lives.numbers_noted(run, event.members)
            case LivesNotNoted():
                lives.numbers_not_noted(run, event.members, event.error)
            case _:
                assert_never(event)

    def saved(self) -> bytes:
        """The whole state of the core."""
        return STATE.frozen(self)

    def restore(self, state: bytes) -> None:
        """Load a state, saved with the same cast and places, into this new core; ValueError for other bytes."""
        STATE.thaw(self, state)

    # -- queries -------------------------------------------------------------------------------------------------------

    @property
    def outcome(self) -> Outcome:
        """The outcome of the run, or 'running'."""
        return self._run.outcome

    @property
    def failure(self) -> incidents.Failure | None:
        """Why the run failed, if it did."""
        return self._run.failure

    @property
    def is_stopping(self) -> bool:
        """Whether the hosts were asked to bring the run to its end."""
        return self._run.is_stopping

    @property
    def is_ending(self) -> bool:
        """Whether the outcome is settled."""
        return self._run.is_ending

    @property
    def is_set_aside(self) -> bool:
        """Whether this daemon ends while the run does not: its outcome is not settled, and no life begins here."""
        return self._run.is_set_aside and not self._run.is_ending

    @property
    def is_finished(self) -> bool:
        """Whether every process has ended, or is no longer awaited."""
        return self._run.is_finished

    @property
    def term(self) -> int:
        """The term of the run in which this is its home."""
        return self._run.stamp.term

    @property
    def fleet(self) -> Fleet:
        """The machines, and the places of the replicas."""
        return self._run.fleet

    @property
    def lives(self) -> dict[Replica, TrackedLife]:
        """The lives that stations have seen."""
        return self._run.lives

    @property
    def used(self) -> dict[str, float]:
        """The resources that ended lives have used, as in the journal."""
        return self._run.used

    def state(self, replica: Replica) -> str:
        """The membership state of a replica, or 'starting', 'away', 'awaited', 'cut off', 'stuck', 'gone', or how it
        was retired."""
        state = self.fleet.retired.get(replica) or self._run.liveness.state(replica)
        life = self.lives.get(replica)
        if life is not None and life.seen.heartbeat.phase in ("away", "gone") and user_code.is_users(self._run, life):
            return "away" if life.seen.heartbeat.phase == "away" else "awaited"
        if state in ("alive", "slow") and life is not None and self._run.reach.is_cut_off(life.member):
            return "cut off"
        if state is not None:
            return state
        why = self.reason(replica)
        if not isinstance(why, incidents.Condemned | incidents.Ended):
            return "starting"
        return "stuck" if isinstance(why.verdict, Stall) else "gone"

    def phase(self, replica: Replica) -> Phase:
        """The phase of a replica's life; between two lives 'gone', before the first 'starting'."""
        life = self.lives.get(replica)
        if life is not None:
            return life.seen.heartbeat.phase
        has_had_none = self.reason(replica) is None or not self.incarnation(replica)
        return "starting" if has_had_none else "gone"

    def reason(self, replica: Replica) -> incidents.Incident | None:
        """The incident that explains a replica's state, if one does."""
        return self._run.reasons.get(replica)

    @property
    def unfinished(self) -> dict[Replica, incidents.Ended]:
        """The scripts that have not come, and will not come, to their own end, with the ends of their last lives."""
        run = self._run
        unseen = incidents.Ended(incidents.Unseen())  # Of a former daemon's, of which it has left no more.
        given_up = {
            replica: why.last if isinstance(why := self.reason(replica), incidents.GivenUp) else unseen
            for replica, how in self.fleet.retired.items()
            if how == "given up" and user_code.is_script(run, replica) and leads_island(replica)
        }
        return {**given_up, **run.unfinished}

    @property
    def dismissed(self) -> list[Replica]:
        """The replicas whose scripts were ended by request, in a run that was over and waited for them."""
        return sorted(self._run.dismissed)

    @property
    def awaited(self) -> list[Replica]:
        """The replicas whose scripts the run, which is over, waits for."""
        return sorted(life.member.replica for life in user_code.awaited(self._run))

    def kept_by_user(self, replica: Replica) -> Duration | None:
        """For how long the user's code has had the thread of a life; None where it has not."""
        life = self.lives.get(replica)
        if life is None or life.user_since is None:  # It is noted at the next beat.
            outside = Duration(0) if life is None else life.seen.heartbeat.outside
            return outside if life is not None and life.seen.heartbeat.phase == "away" else None
        return Duration(self._run.now - life.user_since)

    @property
    def has_begun(self) -> bool:
        """Whether it has handled its first event: what it decides counts from then on."""
        return self._has_begun

    def incarnation(self, replica: Replica) -> int:
        """The number of a replica's newest life; 0 if it has had none."""
        return self._run.newest.get(replica, 0)

    # -- machines ------------------------------------------------------------------------------------------------------

    def _on_report(self, name: str, report: Report) -> None:
        """Handle the report of a station."""
        run = self._run
        machine = run.fleet.machines.get(name)
        if machine is None:  # It no longer takes part, or never did.
            machine = run.fleet.machines[name] = MachineLives(name, is_away=True)
            run.has_news = True
        if machine.is_away:  # It learns so from its orders; what it still runs is no part of the run.
            return
        machine.heard()
        if machine.is_leaving and not report.is_leaving:  # Its daemon was killed while it left, and this is the next.
            machine.is_leaving = False
            lives.start(run, [replica for replica in run.fleet.replicas if run.fleet.name(replica) == name])
        machine.is_leaving, machine.is_far, machine.rostered = report.is_leaving, report.is_far, report.rostered
        # An earlier daemon's journal was lost. For this machine alone: what it says moves no other's orders.
        epoch = max(run.stamp.epoch, machine.epoch)
        if report.obeyed.term == run.stamp.term and report.obeyed > Stamp(run.stamp.term, epoch, run.stamp.number):
            machine.epoch = min(report.obeyed.epoch + 1, COUNT_MAX)
            run.has_news |= machine.epoch > epoch  # Not for a lie that no epoch can follow: each report would be one.
        if run.is_unsure:  # Before the lives are read: those that it learns are tracked then.
            lives.learn(run, machine, report)
        for seen in report.lives:
            if machine.has(seen.member):
                watch.update_life(run, machine, seen)
        for gone in report.ended:  # Last: a life may settle the outcome, after which no end starts a next life.
            if machine.has(gone.member):
                lives.end_life(run, machine, gone)

    def _join(self, names: Sequence[str], admit: Callable[[int], list[Replica]]) -> None:
        """Admit machines, with learners in the slots that the fleet gives them, `admit(most)`.

        A run that is asked to stop admits none, but those back that had left, where no learner can give its last
        answers: without a first version it could not end.
        """
        run, most = self._run, COUNT_MAX
        if run.is_ending or run.is_set_aside:  # Before the fleet changes: none is admitted then.
            return
        if run.is_stopping:
            most = 0 if lives.has_learner(run) else len(run.fleet.returning(names))
            if not most:
                return
        slots = admit(most)  # First: a life is started only on a machine that takes part.
        run.has_changed = run.has_news = True
        for replica in slots:
            run.write(Member(replica, 1), incidents.Joined(run.fleet.name(replica)))
        lives.start(run, slots)

    def _take_away(self, name: str, how: Taken) -> None:
        """Remove a machine: its hosts end, and its learners' slots with them."""
        run = self._run
        machine = run.fleet.machines.get(name)
        if machine is None or machine.is_away:
            return
        run.fleet.take_away(name, how)  # Before its lives end: retired learners get no next life.
        for replica in run.fleet.retired:  # After the removal, which retires the machine's learners.
            run.due.pop(replica, None)
        run.has_changed = run.has_news = True
        lives.end_all_lives_on(run, machine, incidents.MachineTaken(name, how))
        # Those without a life here, whose next one was due or being recorded, move elsewhere.
        lives.start(run, [replica for replica in run.fleet.replicas if run.fleet.name(replica) == name])
        if how == "expelled" and not run.fleet.has_learners and not run.is_ending:
            watch.stop(run)  # With no learner left, the model is the last merged one. One that left may return.

    # -- time ----------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Judge silent machines and hosts, and send complete orders again."""
        # Before the hosts: those of a lost machine have ended, and are not judged.
        for machine in self._run.fleet.beat():
            lives.end_all_lives_on(
                self._run, machine, incidents.MachineLost(machine.name, machine.silent_beats * watch.BEAT)
            )
        watch.beat(self._run)
        self._run.has_news = True

    def _fire(self) -> None:
        """Carry out everything that is due."""
        run, self._timer_at = self._run, None
        if run.adopt_until is not None and run.now >= run.adopt_until:  # First: nothing starts while lives are unknown.
            lives.adopted_all(run)
        if run.liveness.timer_at is not None and run.now >= run.liveness.timer_at:
            watch.apply_findings(run, run.liveness.fire(run.now))
        lives.start(run, [replica for replica, at in sorted(run.due.items()) if run.now >= at])
        if run.exit_at is not None and run.now >= run.exit_at:
            watch.kill_all(run)
        if run.abandon_at is not None and run.now >= run.abandon_at:
            run.abandon_at = None
            waiting = {life.machine for life in user_code.awaited(run)}
            for name in [each for each in run.fleet.others if each not in waiting]:
                lives.end_all_lives_on(run, run.fleet.machines[name], incidents.MachineLost(name, 0))

    def _arm(self) -> None:
        """Make the timer fire when the next thing is due."""
        run = self._run
        orders_at = self._orders_from if run.has_news else None
        times = [run.adopt_until, run.liveness.timer_at, run.exit_at, run.abandon_at, orders_at, *run.due.values()]
        at = min((time for time in times if time is not None), default=None)
        if at is not None and not run.is_finished and (self._timer_at is None or at < self._timer_at):
            self._timer_at = at
            run.commands.append(SetHomeTimer(at))

    # -- orders --------------------------------------------------------------------------------------------------------

    def _rows(self) -> list[Row]:
        rows = []
        for member in self._run.liveness.members():
            if gang_number(member.replica):  # A follower has connections with its leader only.
                continue
            life = self.lives.get(member.replica)
            heartbeat = None if life is None else life.seen.heartbeat
            endpoints = () if heartbeat is None else heartbeat.endpoints or heartbeat.door or ()
            rows.append((str(member.replica), member.incarnation, endpoints, self.fleet.name(member.replica)))
        return rows

    def _rosters(self) -> tuple[tuple[RosterDifference, ...], dict[str, int]]:
        """The changes of the roster that machines lack, by what they hold, and which of them a machine lacks."""
        table, held = self._run.roster, dict[int, int]()
        table.follow(self._rows())
        changes, lacking = list[RosterDifference](), dict[str, int]()
        for name, machine in self.fleet.machines.items():
            if machine.is_away:
                continue
            if machine.rostered not in held and (change := table.after(machine.rostered)) is not None:
                held[machine.rostered] = len(changes)
                changes.append(RosterDifference(table.mark, *change))
            if machine.rostered in held:
                lacking[name] = held[machine.rostered]
        return tuple(changes), lacking

    def _order(self) -> None:
        """Send orders to every machine; none while the lives of the run are unknown.

        Of many machines each has news, and orders to all of them for each would be the square of their number: the next
        orders wait for a share of the home's time.
        """
        run, fleet = self._run, self.fleet
        run.has_news = False  # Also while unsure: `adopted_all` has news of its own.
        if run.is_unsure:
            return
        rosters = ((), {}) if run.adopting else self._rosters()
        machines = (fleet.home, *fleet.others)
        if len(machines) > AT_ONCE_MAX:
            self._orders_from = Instant(run.now + len(machines) * ORDER_TIME)
        run.stamp = Stamp(run.stamp.term, run.stamp.epoch, run.stamp.number + 1)  # Stations ignore what is not newer.
        flags = run.is_stopping, run.is_ending
        epochs = {name: each.epoch for name, each in fleet.machines.items() if each.epoch > run.stamp.epoch}
        wanted, forms = fleet.wanted(), run.forms
        if self.is_set_aside:  # Hosts elsewhere go on as if this home had died: they forget nobody.
            wanted = {fleet.home: wanted[fleet.home]}
        orders = SendOrders(wanted, *rosters, machines, *flags, run.stamp, fleet.away, fleet.home, forms, epochs)
        run.commands.append(orders)

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvariantError unless every replica has at most one life, of its newest number, on its machine."""
        self.fleet.check()
        for machine in self.fleet.machines.values():
            for member in machine.members():
                about, newest = (CoreSubject("replica", member.replica),), self._run.newest.get(member.replica)
                is_newest = member.incarnation == newest
                _demand(is_newest, about, "{} is tracked, and {} is its newest number", member, newest)
        for replica, life in self.lives.items():
            about = (CoreSubject("replica", replica),)
            _demand(life.member.replica == replica, about, "{} is kept as {}", life.member, replica)
            is_tracked = self.fleet.machines[life.machine].has(life.member)
            _demand(is_tracked, about, "{} is known, and not tracked", life.member)
        if self._run.adopt_until is None and not self.is_ending:
            self._check_gangs()
        for replica in self._run.due:
            about = (CoreSubject("replica", replica),)
            _demand(not self.fleet.is_tracked(replica), about, "{} lives, and its next life is due", replica)
        for island in self._run.islands:
            island.check()
        self._run.liveness.check()

    def _check_gangs(self) -> None:
        """Raise InvariantError unless the lives of an island's processes are one life, or are condemned."""
        fleet = self.fleet
        for gang in fleet.gangs:
            there = [each for each in gang if fleet.is_tracked(each)]
            condemned = all(each in fleet.of(each).condemned for each in there)
            numbers = {self._run.newest[each] for each in there}
            is_one = len(numbers) <= 1 and len(there) in (0, len(gang))
            about, names = [CoreSubject("replica", each) for each in gang], ", ".join(map(str, there))
            _demand(is_one or condemned, about, "of {} there are {}, with lives {}", gang[0], names, numbers)
