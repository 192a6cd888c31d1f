"""The beginning and the end of a life, and the takeover of a run by a new daemon.

It decides when the next life of a replica begins, with which number, and when a replica is given up. The number is
recorded before the life is tracked on a machine. A life ends because its station reports so, because its machine is
lost or removed, or because another life has a higher number; the cause decides how soon the next one begins.

A daemon that takes over (`begin`) tracks the newest life of each replica, and learns from the stations which of these
are running. It starts none of them, because whether and where each was started is unknown. A ledger that was lost is
rebuilt from what stations and hosts report (`learn`, `adopted_all`). Another machine that becomes the home begins the
next term in the same way; the former home yields (`yield_home`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.cores.membership_messages import HostAnnounced, HostEnded
from isthmus.runtime.ids import Member, Replica, keeps_run, leads_island, takes_island
from isthmus.runtime.supervision import incidents, user_code, watch
from isthmus.runtime.supervision.fleet import MachineLives
from isthmus.runtime.supervision.flows import as_used
from isthmus.runtime.supervision.home_events import DAEMON, HomeBegan, Journal
from isthmus.runtime.supervision.home_state import GangEnd, RunState, TrackedLife
from isthmus.runtime.supervision.liveness import BACKOFF_SECONDS
from isthmus.runtime.supervision.messages import Gone, Report, Seen, Stamp
from isthmus.runtime.supervision.station_events import NoteFound, NoteLives


def start(run: RunState, replicas: list[Replica]) -> None:
    """Begin the next life of each replica that has none and should have one: take its number first.

    No number is taken while the numbers in use are unknown.
    """
    for replica in replicas:
        run.due.pop(replica, None)
    if run.is_unsure or run.is_set_aside:
        return
    if run.is_ending:
        replicas = [each for each in replicas if user_code.is_owed(run, each)]
    staying = [each for each in replicas if not run.fleet.is_retired(each) and not run.fleet.of(each).is_leaving]
    gangs = dict.fromkeys(tuple(run.fleet.together(each)) for each in staying)
    fresh = [gang for gang in gangs if not any(each in run.noting or run.fleet.is_tracked(each) for each in gang)]
    if fresh:
        numbers: dict[Replica, int] = {}
        for gang in fresh:
            numbers |= dict.fromkeys(gang, 1 + max(run.floor, *(run.newest.get(each, 0) for each in gang)))
        run.noting.update(numbers)
        run.commands.append(NoteLives(tuple(Member(*each) for each in numbers.items())))


def restart_split_gangs(run: RunState) -> None:
    """Have the rest of an island killed whose processes do not all have the same life.

    After a ledger was lost, the fate of the other processes is unknown.
    """
    for gang in run.fleet.gangs:
        numbers = {each: run.newest.get(each) for each in gang if run.fleet.is_tracked(each)}
        missing = next((each for each in gang if each not in numbers), None)
        if numbers and (missing is not None or len(set(numbers.values())) > 1):
            for each, number in numbers.items():
                run.condemn(Member(each, number or 0), incidents.GangMemberLost(str(missing or gang[0])))


def start_later(run: RunState, replica: Replica) -> None:
    """Begin the next life of a replica after the longest back-off, when there may be room for it."""
    run.due[replica] = run.after(seconds(BACKOFF_SECONDS[-1]))


def numbers_noted(run: RunState, members: tuple[Member, ...]) -> None:
    """The numbers are recorded: their lives may run, where there is a machine for them.

    No replica is moved before this, because the next daemon looks for the life of the newest number on the machine that
    the journal names.
    """
    for member in members:
        replica, is_next = member.replica, member.replica in run.noting
        run.noting.discard(replica)
        run.newest[replica] = max(member.incarnation, run.newest.get(replica, 0))
        if (
            is_next
            and (not run.is_ending or user_code.is_owed(run, replica))
            and not run.is_set_aside
            and not run.fleet.is_retired(replica)
            and _has_place(run, replica)
        ):
            run.fleet.of(replica).track(member, is_new=True)
    run.has_news = True


def numbers_not_noted(run: RunState, members: tuple[Member, ...], error: str) -> None:
    """The disk did not record these numbers; retry later."""
    for member in members:
        run.noting.discard(member.replica)
        if not run.fleet.is_tracked(member.replica):
            run.reasons[member.replica] = incidents.Delayed(error)
            start_later(run, member.replica)


def _has_place(run: RunState, replica: Replica) -> bool:
    """Whether there is a machine for the next life of a replica; without one the run fails."""
    before = run.fleet.name(replica)
    has_place = run.fleet.relocate(replica)
    run.has_changed |= run.fleet.name(replica) != before
    if not has_place:
        why = run.reasons.get(replica)
        last = why if isinstance(why, incidents.Ended) else incidents.Ended(incidents.Unseen())
        watch.end_run(run, "failed", incidents.NoMachineLeft(str(replica), last))
    return has_place


def end_life(run: RunState, machine: MachineLives, gone: Gone) -> None:
    """Record the end of a life; the next one takes its place, unless the run is ending."""
    member, replica = gone.member, gone.member.replica
    machine.forget(member)  # First: the next life starts only where none is tracked.
    life = run.lives.pop(replica, None)
    flows = as_used(replica, gone.flows, run.fleet.group_role)
    for key, value in ((f"{replica.role}.cpu_seconds", gone.cpu_seconds), *flows):
        run.used[key] = run.used.get(key, 0.0) + value
    run.adopting.discard(replica)
    run.has_changed = run.has_news = True
    ended = incidents.Ended(gone.end, None if life is None else life.verdict, gone.error)
    left = _left(run, machine, life, gone)
    noted = _departed(run, machine, ended, replica) or _while_away(run, life, ended)
    if left is not None and isinstance(gone.end, incidents.Exited):
        noted = incidents.Ended(incidents.Parted(gone.end))
    run.reasons[replica] = noted
    if not run.is_ending:
        run.write(member, noted)  # Before incidents that follow from it.
    elif user_code.script_ended(run, replica, life, ended):
        _follow_script(run, member, ended, None if life is None else life.served_at)
    if replica in run.unfinished:
        run.write(member, incidents.ScriptUnfinished(ended))
    watch.apply_findings(run, run.liveness.handle(HostEnded(member), run.now))
    gang_end = _gang_end(run, member, GangEnd(ended, None if life is None else life.served_at, left))
    if gang_end is None:
        return
    if left := left or gang_end.left:
        _retire_left(run, Member(run.fleet.lead(replica), member.incarnation), left)
        return
    first = Member(run.fleet.lead(replica), member.incarnation)
    run.restarts.ended(first.replica, gang_end.ended, gang_end.served_at, run.now)
    # Before the next life: where every learner ends by one error, none of them starts again.
    if leads_island(first.replica):
        run.repeats.ended(first.replica, gang_end.ended.error, gang_end.served_at, run.now)
    repeated = None if run.is_ending else run.repeats.common(run.fleet.learners, run.fleet.speak_for_all)
    if repeated is not None:
        watch.end_run(run, "failed", incidents.ProgramFailed(repeated.error, repeated.lives))
    error = gang_end.ended.error
    if not run.is_ending and error is not None and error.is_refusal and machine.name == run.fleet.home:
        watch.end_run(run, "failed", incidents.LoopRefused(str(first.replica), error))
    if not run.is_ending and not (run.is_stopping and leads_island(first.replica) and has_learner(run)):
        _follow(run, first, gang_end)


def _while_away(run: RunState, life: TrackedLife | None, ended: incidents.Ended) -> incidents.Ended:
    """The end of a life, with the time that it was away until then; its way out, once its host has left, is none."""
    if life is None or life.user_since is None or run.is_ending or life.seen.heartbeat.phase in ("gone", "leaving"):
        return ended
    if not life.seen.beats:
        return ended
    return msgspec.structs.replace(ended, away_ns=run.now - life.user_since)


def _departed(run: RunState, machine: MachineLives, ended: incidents.Ended, replica: Replica) -> incidents.Ended | None:
    """The end of a life that left in order with its machine, or with the home that is set aside; None of any other.

    Learners and the recorder are asked to leave, and exit; what is left then is killed by their daemon, unasked.
    """
    is_home = machine.name == run.fleet.home
    end, is_asked = ended.end, takes_island(replica) or keeps_run(replica)
    is_to_leave = machine.is_leaving or (is_home and run.is_set_aside)
    if not is_to_leave or ended != incidents.Ended(end) or not isinstance(end, incidents.Exited):
        return None
    if is_home and is_asked and end.signal == KILLED and run.aside is not None and run.aside.within:
        reason = user_code.outlasted_notice(run.aside, run.now)
        return None if reason is None else incidents.Ended(end, reason)
    if end.status != 0 and (is_asked or end.signal != KILLED):
        return None
    return incidents.Ended(incidents.Departed("" if is_home else machine.name, end))


def _left(
    run: RunState, machine: MachineLives, life: TrackedLife | None, gone: Gone
) -> incidents.LoopLeft | incidents.DataSpent | None:
    """Why a learner has left by itself, in order, though neither its machine nor its home leaves; else None."""
    if life is None or run.is_ending or run.is_set_aside or machine.is_leaving:
        return None
    if gone.end != incidents.Exited(0) or gone.error is not None or life.verdict is not None:
        return None
    heartbeat = life.seen.heartbeat
    return heartbeat.spent or (incidents.LoopLeft() if heartbeat.phase == "gone" else None)


def _retire_left(run: RunState, member: Member, left: incidents.LoopLeft | incidents.DataSpent) -> None:
    """Give a learner that has left no next life; without any other the run comes to its end."""
    run.fleet.retired[member.replica] = "left"
    is_last = not run.fleet.has_learners
    run.write(member, msgspec.structs.replace(left, is_last=is_last))
    run.has_changed = True
    if is_last:
        watch.stop(run)


def _gang_end(run: RunState, member: Member, gang_end: GangEnd) -> GangEnd | None:
    """The first end among the processes of an island, once all have ended; else None, and the others are condemned.

    For a replica that is alone, its own end.
    """
    gang = run.fleet.together(member.replica)
    if len(gang) == 1:
        return gang_end
    lead = run.lives.get(gang[0])
    if lead is not None:  # A follower serves from when its leader does.
        gang_end = replace(gang_end, served_at=lead.served_at)
    gang_end = run.gang_ends.setdefault(gang[0], gang_end)
    others = [each for each in gang if run.fleet.is_tracked(each)]
    verdict = None if gang_end.left else incidents.GangMemberLost(str(member.replica))
    for each in () if run.is_ending else others:
        run.condemn(Member(each, run.newest[each]), verdict)
    return None if others else run.gang_ends.pop(gang[0])


def end_all_lives_on(run: RunState, machine: MachineLives, end: incidents.End) -> None:
    """Count every life on a machine as ended, even if it still runs there."""
    for member in machine.members():
        life = run.lives.get(member.replica)
        seen = life.seen if life is not None and life.member == member else Seen(member, 0)
        end_life(run, machine, Gone(member, end, seen.error, seen.heartbeat.cpu_seconds, seen.heartbeat.flows))


def has_learner(run: RunState) -> bool:
    """Whether a learner can still give the last answers, so that a restart would only delay the end."""
    return any(life.seen.heartbeat.phase in watch.SERVING for life in run.learners)


def _follow_script(run: RunState, former: Member, ended: incidents.Ended, served_at: Instant | None) -> None:
    """Schedule the next life of a script in a run that is over, which has not had the run's model."""
    delay = run.restarts.delay(former.replica, served_at, run.now)
    if delay is None:
        user_code.leave_unfinished(run, former.replica, ended)
    elif delay:
        run.due[former.replica] = run.after(delay)
    else:
        start(run, [former.replica])


KILLED: Final = "SIGKILL"


def _follow(run: RunState, former: Member, gang_end: GangEnd) -> None:
    """Schedule the next life of a replica, unless its lives end again and again."""
    replica, ended, served_at = former.replica, gang_end.ended, gang_end.served_at
    if replica in run.fleet.retired or run.is_set_aside or run.fleet.of(replica).is_leaving:
        return
    is_unreached = isinstance(ended.verdict, incidents.Unreached)
    if is_unreached:
        run.reach.ended(replica)
    if is_unreached or isinstance(ended.end, incidents.MachineLost | incidents.MachineTaken):
        start(run, [replica])  # The program is not at fault.
        return
    if isinstance(ended.end, incidents.NotStarted):  # Nor here: there may be room later.
        start_later(run, replica)
        return
    if isinstance(ended.verdict, incidents.Misbehaved):  # It counts as a failure, however long it served.
        served_at = None
    end = ended.end
    is_killed = ended.verdict is None and isinstance(end, incidents.Exited) and end.signal == KILLED
    delay = run.restarts.delay(replica, served_at, run.now, is_killed=is_killed)
    if delay is None:
        _give_up(run, former, ended)
    elif delay:
        run.due[replica] = run.after(delay)
    else:
        start(run, [replica])


def _give_up(run: RunState, former: Member, ended: incidents.Ended) -> None:
    """Give a replica no further life: the others go on, if the run can do without it."""
    replica, lives = former.replica, run.restarts.failures(former.replica)
    if not run.fleet.is_spare(replica):
        watch.end_run(run, "failed", incidents.RestartsExhausted(str(replica), lives, ended))
        return
    run.fleet.retired[replica] = "given up"
    run.write(former, incidents.GivenUp(lives, ended))
    run.has_changed = True


ADOPT: Final = seconds(11)
"""The time for which a new daemon waits for running hosts to find it, which they do within a few seconds; a second more
than a station whose ledger was lost. Until then it sends no roster: a host that is missing in one counts as gone."""
NUMBERS_SKIPPED: Final = 1000
"""Numbers skipped above the highest known one, after a ledger was lost: a replica whose lives end again and again is
given up long before."""
NUMBERS_REACH: Final = 100_000
"""How far above the numbers that the home has recorded itself one of a report may be: an order of magnitude more than
lives begin between two writes of the incidents. Each lost ledger moves the numbers by at most so many more."""
NUMBERS_OF_TERM: Final = 10_000_000
"""Numbers of each term: enough for a hundred lost ledgers. A former home that is still alive gives no number of a
later one."""


def begin(run: RunState, event: HomeBegan) -> None:
    """Take over the records of a former daemon, and start the rest."""
    fleet = run.fleet
    run.newest = {member.replica: member.incarnation for member in event.newest}
    if event.journal is not None:
        recall(run, event.journal)  # Before anything is placed: it names the machines, and what was retired.
    fleet.parties.know(event.parties)
    run.is_taking = event.is_lost and bool(fleet.former) and (event.journal is None or event.journal.term < fleet.term)
    if run.is_taking:
        run.write(DAEMON, incidents.HomeTaken(fleet.home, fleet.term, fleet.former))
    fleet.know(run.newest)
    run.has_changed = True
    run.is_unsure = event.is_lost
    if run.is_unsure:
        for text, name in event.recorded.joined:
            fleet.place_joined(Replica.parse(text), name)
        run.number_known = max(0, run.floor, event.recorded.number, *run.newest.values())
    expected = [replica for replica in fleet.replicas if fleet.is_expected(replica)]
    tracked = [] if run.is_unsure else [replica for replica in expected if replica in run.newest]
    for replica in tracked:
        fleet.of(replica).track(Member(replica, run.newest[replica]))
    run.adopting = set(expected) if run.is_unsure else set(tracked)
    if run.adopting or run.is_unsure:
        run.adopt_until = run.after(ADOPT)
    if run.outcome != "running":  # Before the start: a run that is over begins no life but those of scripts.
        watch.settle(run, run.outcome, run.failure)
        watch.kill_all(run)
    start(run, [replica for replica in fleet.replicas if replica not in tracked])
    run.has_news = True


def recall(run: RunState, journal: Journal) -> None:
    """Load the journal of a former daemon."""
    run.is_stopping, run.outcome, run.failure = journal.is_stopping, journal.outcome, journal.failure
    run.has_given_way = isinstance(journal.failure, incidents.SupersededHome)
    run.used.update(journal.used)
    run.floor = journal.number_least
    run.finished = {Replica.parse(name) for name in journal.finished}
    run.unfinished = {Replica.parse(name): ended for name, ended in journal.unfinished}
    if journal.term == run.stamp.term:
        run.stamp = Stamp(run.stamp.term, journal.epoch + 1)
    run.fleet.recall(journal.machines, journal.away, journal.retired, journal.parties)
    run.recall_forms(journal.forms)


def yield_home(run: RunState, by: str, term: int) -> None:
    """Another machine is the home of the run: the run goes on there, and every host of this home ends."""
    if by == run.fleet.home or term < run.stamp.term or run.has_given_way:
        return
    run.has_given_way = True  # Once: every machine answers all later orders in the same way.
    change = by, term, run.stamp.term
    run.write(DAEMON, incidents.Superseded(*change))
    watch.end_run(run, "failed", incidents.SupersededHome(*change))


def journal_of(run: RunState) -> Journal:
    """The journal for the next daemon."""
    fleet = run.fleet
    return Journal(
        is_stopping=run.is_stopping,
        outcome=run.outcome,
        failure=run.failure,
        machines=fleet.placed(),
        away=fleet.away,
        retired=tuple((str(replica), how) for replica, how in fleet.retired.items()),
        used=dict(run.used),
        number_least=run.floor,
        epoch=run.stamp.epoch,
        term=run.stamp.term,
        forms=run.forms,
        finished=tuple(sorted(map(str, run.finished))),
        unfinished=tuple((str(replica), ended) for replica, ended in sorted(run.unfinished.items())),
        parties=fleet.parties.noted(),
    )


def learn(run: RunState, machine: MachineLives, report: Report) -> None:
    """Accept the lives that a station reports, while the home's own records are lost.

    A late or repeated report does not bring a life back. A machine is believed about lives that it may have, with
    numbers that the home may have given.
    """

    number_max = NUMBERS_REACH + max(run.number_known, (run.stamp.term - 1) * NUMBERS_OF_TERM)

    def may_be(member: Member) -> bool:
        return member.incarnation <= number_max and run.fleet.may_have(machine.name, member.replica)

    for newest in filter(may_be, (*report.newest, *(seen.member for seen in report.lives))):
        replica = newest.replica
        if newest.incarnation > run.newest.get(replica, 0):
            run.newest[replica] = newest.incarnation
            for former in [each for each in run.fleet.machines.values() if replica in each.tracked]:
                end_life(run, former, Gone(Member(replica, former.tracked[replica]), incidents.Unseen()))
    for seen in [each for each in report.lives if may_be(each.member)]:
        replica = seen.member.replica
        is_newest = seen.member.incarnation == run.newest[replica] and not run.liveness.has_ended(seen.member)
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
            watch.apply_findings(run, run.liveness.handle(HostAnnounced(member, "starting"), run.now))
    run.adopt_until = None
    if run.is_unsure:
        run.is_unsure = False
        least = NUMBERS_SKIPPED + max(run.number_known, max(run.newest.values(), default=0))
        run.floor = max(least, (run.stamp.term - 1) * NUMBERS_OF_TERM)
        run.has_changed = True
        if not run.is_taking:
            run.write(DAEMON, incidents.NumbersLost(run.floor + 1))
        run.commands.append(NoteFound())
        restart_split_gangs(run)
        start(run, run.fleet.replicas)
    run.has_news = True
