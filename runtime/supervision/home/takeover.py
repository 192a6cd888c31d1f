"""The start of a daemon: from the records of a former one, from the lives that stations report, or from nothing.

A daemon that takes over tracks the newest life of each replica, and learns from the stations which of them are running;
it begins none of these, because whether and where each was begun is unknown. It sends no roster until all hosts that
may be running have been heard (ADOPT), because a host that is missing in a roster counts as gone. Where the ledger was
lost, stations and hosts report the lives that there were, and numbers continue far beyond them.

Another machine that becomes the home of a run begins the next term in the same way: its copy of the ledger may be old,
so it is trusted for everything but lives. Each term has numbers of its own, so that a former home which lives on unseen
never gives a number that this home gives. A home that learns of a later term gives way: the run is no longer its own.
"""

from __future__ import annotations

from typing import Final

from isthmus.runtime.clock import seconds
from isthmus.runtime.ids import Member
from isthmus.runtime.membership.messages import HostAnnounced
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.home import births, deaths, endings, watch
from isthmus.runtime.supervision.home.events import DAEMON, HomeBegan, Journal
from isthmus.runtime.supervision.home.machine import Machine
from isthmus.runtime.supervision.home.state import RunState
from isthmus.runtime.supervision.messages import Gone, Report, Stamp
from isthmus.runtime.supervision.station_events import NoteFound, NoteLives

ADOPT: Final = seconds(11)
"""The time for which a new daemon waits for running hosts to find it, which they do within a few seconds; a second more
than a station whose ledger was lost."""
NUMBERS_SKIPPED: Final = 1000
"""Numbers skipped above the highest known one, after a ledger was lost: a replica whose lives end again and again is
given up long before."""
NUMBERS_OF_TERM: Final = 100_000
"""Numbers of each term: enough for a hundred lost ledgers."""


def begin(run: RunState, event: HomeBegan) -> None:
    """Take over the records of a former daemon, and start the rest."""
    fleet = run.fleet
    run.newest = {member.replica: member.incarnation for member in event.newest}
    if event.journal is not None:
        recall(run, event.journal)
    run.is_taking = event.is_lost and bool(fleet.former) and (event.journal is None or event.journal.term < fleet.term)
    if run.is_taking:
        run.write(DAEMON, incidents.HomeTaken(fleet.home, fleet.term, fleet.former))
    fleet.know(run.newest)
    run.has_changed = True
    run.is_unsure = event.is_lost
    expected = [replica for replica in fleet.replicas if fleet.is_expected(replica)]
    known = [] if run.is_unsure else [replica for replica in expected if replica in run.newest]
    for replica in known:
        fleet.of(replica).track(Member(replica, run.newest[replica]))
    run.adopting = set(expected) if run.is_unsure else set(known)
    if run.adopting or run.is_unsure:
        run.adopt_until = run.after(ADOPT)
    if run.outcome != "running":
        endings.end_run(run, run.outcome, run.failure)
    births.start(run, [replica for replica in fleet.replicas if replica not in known])
    run.has_news = True


def recall(run: RunState, journal: Journal) -> None:
    """Load the journal of a former daemon."""
    run.is_stopping, run.outcome, run.failure = journal.is_stopping, journal.outcome, journal.failure
    run.has_given_way = isinstance(journal.failure, incidents.Moved)
    run.used.update(journal.used)
    run.floor = journal.number_least
    if journal.term == run.stamp.term:
        run.stamp = Stamp(run.stamp.term, journal.epoch + 1)
    run.fleet.recall(journal.machines, journal.away, journal.retired)
    run.recall_forms(journal.forms)


def give_way(run: RunState, by: str, term: int) -> None:
    """Another machine is the home of the run: the run goes on there, and every host of this home ends."""
    if by == run.fleet.home or term < run.stamp.term or run.has_given_way:
        return
    run.has_given_way = True  # Once: every machine answers all later orders in the same way.
    found = by, term, run.stamp.term
    run.write(DAEMON, incidents.Superseded(*found))
    endings.end_run(run, "failed", incidents.Moved(*found))


def noted(run: RunState) -> Journal:
    """The journal for the next daemon."""
    fleet = run.fleet
    return Journal(
        is_stopping=run.is_stopping,
        outcome=run.outcome,
        failure=run.failure,
        machines=fleet.placed(),
        away=fleet.away,
        retired=tuple((str(replica), how) for replica, how in sorted(fleet.retired.items())),
        used=dict(run.used),
        number_least=run.floor,
        epoch=run.stamp.epoch,
        term=run.stamp.term,
        forms=run.forms,
    )


def learn(run: RunState, machine: Machine, report: Report) -> None:
    """Accept the lives that a station reports, while the home's own records are lost.

    A late or repeated report does not bring a life back.
    """
    for known in (*report.newest, *(seen.member for seen in report.lives)):
        replica = known.replica
        if known.incarnation > run.newest.get(replica, 0):
            run.newest[replica] = known.incarnation
            for former in [each for each in run.fleet.machines.values() if replica in each.tracked]:
                deaths.bury(run, former, Gone(Member(replica, former.tracked[replica]), incidents.Unseen()))
    for seen in report.lives:
        replica = seen.member.replica
        is_newest = seen.member.incarnation == run.newest[replica] and not run.roll.has_ended(seen.member)
        if is_newest and not run.fleet.is_tracked(replica):
            run.fleet.know([replica])
            if machine.name != run.fleet.name(replica):
                run.fleet.place(replica, machine.name)
                run.has_changed = True
            machine.track(seen.member)
            run.commands.append(NoteLives((seen.member,)))


def adopted_all(run: RunState) -> None:
    """End the wait for hosts to be adopted: those not heard become members until they are found to be gone.

    A roster without them would declare them gone to all others, for good.
    """
    adopting = sorted(run.adopting)
    run.adopting.clear()
    for replica in adopting:
        if run.fleet.is_tracked(replica):
            member = Member(replica, run.newest[replica])
            watch.find(run, run.roll.take(HostAnnounced(member, "starting"), run.now))
    run.adopt_until = None
    if run.is_unsure:
        run.is_unsure = False
        least = NUMBERS_SKIPPED + max(run.newest.values(), default=0)
        run.floor = max(least, (run.stamp.term - 1) * NUMBERS_OF_TERM)
        run.has_changed = True
        if not run.is_taking:
            run.write(DAEMON, incidents.NumbersLost(run.floor + 1))
        run.commands.append(NoteFound())
        births.mend(run)
        births.start(run, run.fleet.replicas)
    run.has_news = True
