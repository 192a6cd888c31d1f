"""Reports about the lives of a run, verdicts on them, and the end of the run.

It decides which lives are condemned: one that is silent, stuck or cut off, whose items other hosts refuse, or that
never sends a heartbeat. A life is *seen* by a report of its station, and *heard* with its first heartbeat, when it is
admitted.

A run that is asked to stop ends by itself. One whose outcome is *settled* is over, even if this daemon dies: hosts are
ordered to exit, and killed after a while (`RunRoles`); after ABANDON more, no machine is awaited. It is finished when
no life is left.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from isthmus.runtime.clock import Duration, seconds
from isthmus.runtime.cores.membership_messages import Excuse, HeartbeatArrived, HostAnnounced, Phase
from isthmus.runtime.ids import Member, gang_number, island_in, keeps_run, leader
from isthmus.runtime.supervision import bounds, incidents, user_code
from isthmus.runtime.supervision.bounds import Bound
from isthmus.runtime.supervision.elastic import MEET, Changed, ElasticIsland, TooFew
from isthmus.runtime.supervision.fleet import SILENT_BEATS, MachineLives
from isthmus.runtime.supervision.home_events import DAEMON, FinishRun, Outcome
from isthmus.runtime.supervision.home_state import Aside, RunState, TrackedLife
from isthmus.runtime.supervision.incidents import Failure
from isthmus.runtime.supervision.liveness import Findings
from isthmus.runtime.supervision.messages import Formed, ItemRefusal, Over, ReportFault, Seen

ABANDON: Final = seconds(5)
"""The time that other machines have to report the end of their hosts, once all are to be killed."""


def stop(run: RunState) -> None:
    """Ask the hosts to bring the run to its end; once it is over, end the scripts that it waits for."""
    if run.is_ending:
        user_code.dismiss(run)
    run.stop()


def settle(run: RunState, outcome: Outcome, failure: Failure | None) -> None:
    """Fix the outcome of the run for good; hosts may exit by themselves."""
    if not run.is_ending:
        run.is_ending = True
        if run.outcome == "running":
            run.outcome, run.failure = outcome, failure
            run.has_changed = True
        run.due = {each: at for each, at in run.due.items() if user_code.is_owed(run, each)}
        run.exit_at = run.after(run.fleet.exit)
    run.has_news = True


def end_run(run: RunState, outcome: Outcome, failure: Failure | None) -> None:
    """Fix the outcome of the run, and kill every process."""
    settle(run, outcome, failure)
    user_code.dismiss(run)
    kill_all(run)


def kill_all(run: RunState) -> None:
    """Have every process killed but the awaited ones; where the lives of the run are unknown, once they are known."""
    run.exit_at = run.adopt_until if run.is_unsure else None
    if run.is_unsure:
        return
    for machine in run.fleet.machines.values():
        machine.condemned.update(each for each in machine.tracked if not user_code.is_awaited(run, each))
    if run.abandon_at is None:
        run.abandon_at = run.after(ABANDON)
    run.has_news = True


def set_aside(run: RunState, within: Duration) -> None:
    """Let the hosts of this machine leave, and no other begin. The next daemon goes on, as after a death."""
    if not run.is_set_aside and not run.is_ending:
        run.aside = Aside(run.now, within)
        run.has_news = True
        run.due.clear()
        run.write(DAEMON, incidents.HomeSetAside())


def finish_if_alone(run: RunState) -> None:
    """Finish once the outcome is settled and no life is left; a home that is set aside, once none is left there."""
    is_alone = run.fleet.is_idle and not run.noting and not run.due and not run.is_unsure
    if run.is_set_aside and not run.is_ending:
        is_alone = not run.fleet.machines[run.fleet.home].tracked and not run.noting
    if (run.is_ending or run.is_set_aside) and is_alone and not run.is_finished:
        run.is_finished = True
        run.commands.append(FinishRun())


SERVING: Final[frozenset[Phase]] = frozenset({"stepping", "away", "serving", "final"})
"""The phases of a host that does its work."""
BEAT: Final = seconds(0.5)
REFUSALS_MAX: Final = 3
"""Items of one life that another host refuses on one edge: after so many the life is at fault, and not a flipped bit.
"""


def update_life(run: RunState, machine: MachineLives, seen: Seen) -> None:
    """Handle a reported life."""
    member, replica = seen.member, seen.member.replica
    life = run.lives.get(replica)
    machine.fresh.discard(replica)  # It was begun: a station that does not know it must not begin it again.
    if life is None or life.member != member:
        life = run.lives[replica] = TrackedLife(member, machine.name, Seen(member, seen.pid))
        if replica in run.adopting or run.liveness.has(member):
            run.write(member, incidents.Adopted())
        elif member.incarnation > 1:
            run.write(member, incidents.Restarted())
    if not seen.beats and life.seen.beats:  # Its station is new, and has not heard it yet.
        former = life.seen
        seen = Seen(member, seen.pid, 0, seen.is_stopped, former.error, former.heartbeat, former.over)
    before, life.seen = life.seen, seen
    if seen.heartbeat.phase == "away":
        user_code.went_away(run, life)
    elif before.heartbeat.phase == "away" and seen.heartbeat.phase == "stepping":
        user_code.came_back(run, life)
    if seen.error and not run.is_ending and not life.has_raised:
        life.has_raised = True
        run.write(member, incidents.BodyRaised(seen.error))
    if seen.heartbeat.starved is not None and not life.is_starved and not run.is_ending:
        life.is_starved = True
        run.write(member, seen.heartbeat.starved)
    if seen.heartbeat.data_digest and not run.is_ending and not life.has_compared:
        life.has_compared = True
        _compare_data(run, seen)
    if seen.heartbeat.phase in SERVING and life.served_at is None:
        life.served_at = run.now
    if seen.beats and seen.beats != before.beats and replica not in machine.condemned:
        _on_heartbeat(run, seen)
    for refusal in seen.heartbeat.refusals:
        _judge(run, member, refusal)
    if seen.over is not None and keeps_run(replica) and not run.is_ending:
        is_stopped = run.is_stopping or seen.over.is_stopped
        failure: Failure | None = None if is_stopped else _never_healthy(run)
        failure = failure or _unlike_model(run, seen.over)
        if seen.over.error is not None:
            failure = incidents.RecorderFailed(seen.over.error)
        settle(run, "failed" if failure else "stopped" if is_stopped else "done", failure)


def _unlike_model(run: RunState, over: Over) -> incidents.ModelsDiffer | None:
    """The first learner whose leaves are not the last model, where those that say so are believed."""
    found = [(island_in(slot), leaf) for slot, leaf in over.unlike]
    if not run.fleet.speak_for_all(each for each, _ in found):
        return None  # A stranger that says so of its own learner: its script knows it, too.
    return incidents.ModelsDiffer(str(found[0][0]), found[0][1])


def _compare_data(run: RunState, seen: Seen) -> None:
    """Record that a host has begun as another one: both may have the same data."""
    for replica, other in sorted(run.lives.items()):
        if replica != seen.member.replica and other.seen.heartbeat.data_digest == seen.heartbeat.data_digest:
            run.write(seen.member, incidents.SameData(str(replica)))
            return


REFUSED_EVERY: Final = seconds(60)
"""The interval at which refused reports of one machine are recorded: one that lies sends several a second."""


def refuse_report(run: RunState, name: str, fault: ReportFault) -> None:
    """Record that a report of a machine cannot be counted; its hosts are silent until one can."""
    machine = run.fleet.machines.get(name)
    if machine is None or machine.is_away:
        return
    machine.silent_beats = max(machine.silent_beats, SILENT_BEATS)
    if machine.refused_at is None or run.now - machine.refused_at >= REFUSED_EVERY:
        machine.refused_at = run.now
        run.write(DAEMON, incidents.ReportRefused(name, fault.field, fault.expected, fault.found))


def _never_healthy(run: RunState) -> incidents.NeverHealthy | None:
    """The first required replica that raised in all of its last lives, if the present one has computed nothing yet."""
    for replica in run.fleet.needed():
        life, raised = run.lives.get(replica), run.restarts.raised(replica)
        works = life is not None and life.seen.error is None and life.seen.heartbeat.busy > 0
        if raised and not works:
            return incidents.NeverHealthy(str(replica), len(raised), raised[-1])
    return None


def beat(run: RunState) -> None:
    """Judge hosts that send no heartbeats, or that no other host hears."""
    for life in list(run.lives.values()):
        is_heard = not run.fleet.machines[life.machine].is_silent or life.machine == run.fleet.home
        is_ours = not user_code.is_script(run, life.member.replica)  # What a script does before its `with` is its own.
        if not life.seen.beats and not life.seen.is_stopped and is_heard and is_ours:
            life.beats_without_heartbeat += 1
            _judge_start(run, life)
        _judge_progress(run, life)
    user_code.judge(run)
    if run.is_set_aside and not run.is_ending:
        return
    is_hurried = run.is_coming_to_its_end and not run.is_ending
    apply_findings(run, run.liveness.review(run.now, is_hurried=is_hurried))
    if not run.is_ending:
        lives = [life for life in run.lives.values() if not gang_number(life.member.replica)]
        heard = {life.member: life.seen.heartbeat for life in lives if run.liveness.is_heard(life.member)}
        far = {life.member for life in lives if run.fleet.machines[life.machine].is_far}
        apply_findings(run, run.reach.beat(heard, is_hurried=is_hurried, far=far))
        if unserved := run.service.beat(
            run.fleet.needed(), heard, is_hurried=is_hurried, group_role=run.fleet.group_role
        ):
            replica, lasted = unserved
            end_run(run, "failed", incidents.Unserved(str(replica), lasted, run.reasons.get(replica)))


def _judge_start(run: RunState, life: TrackedLife) -> None:
    """Judge a process that has not sent a heartbeat."""
    limit = run.fleet.user.start
    end = partial(run.condemn, life.member, incidents.NoFirstHeartbeat(limit))
    bounds.judge(run, life, Bound(bounds.START, limit), Duration(life.beats_without_heartbeat * BEAT), end)


def _judge_progress(run: RunState, life: TrackedLife) -> None:
    """Name the end of a host that is silent, or makes no step, before the membership core ends it."""
    if run.is_ending or run.is_set_aside:
        return
    for setting, patience in (
        (bounds.SILENT, run.liveness.silence(life.member, run.now)),
        (bounds.STUCK, run.liveness.stall(life.member, run.now)),
    ):
        if patience is None:
            life.warned.discard(setting)
        else:
            bounds.judge(run, life, Bound(setting, patience.limit), patience.lasted)


def form(run: RunState) -> None:
    """Update which processes of elastic islands train together."""
    if run.is_unsure or run.is_ending or run.adopting:
        return
    for island in run.islands:
        _form(run, island)


def _form(run: RunState, island: ElasticIsland) -> None:
    fleet, gang = run.fleet, island.gang
    lives = {each: Member(each, run.newest.get(each, 0)) for each in gang if fleet.is_tracked(each)}
    if fleet.is_retired(island.leader):
        for member in lives.values():
            run.condemn(member, incidents.GangMemberLost(str(island.leader)))
        return
    wanted = {each: member for each, member in lives.items() if each not in fleet.of(each).condemned}
    present = [member for member in wanted.values() if run.liveness.is_heard(member)]
    there = {member.replica for member in present}
    coming = [each for each in gang if each not in there and not fleet.is_retired(each)]
    life = run.lives.get(island.leader)
    formed = Formed() if life is None else life.seen.heartbeat.formed
    lead = lives.get(island.leader)
    change = island.look(present, coming, formed, run.floor, run.now)
    match change:
        case Changed() if lead is not None:
            run.has_changed = run.has_news = True
            count = len(change.form.members)
            for replica in change.missing:
                run.write(lead, incidents.ProcessMissing(str(replica), MEET, count, len(gang)))
            for member in [each for each in change.lost if each.replica != island.leader]:
                run.write(lead, incidents.ProcessLost(str(member.replica), count, len(gang)))
            for member in [each for each in change.back if each.replica != island.leader]:
                run.write(lead, incidents.ProcessBack(str(member.replica), count, len(gang)))
        case TooFew():
            for member in present:
                run.condemn(member, incidents.TooFewProcesses(change.processes, change.least))
    if lead is not None and island.has_formed(formed) and formed.stall_ns:
        run.write(lead, incidents.Reformed(formed.processes, len(gang), formed.stall_ns, formed.again))


def apply_findings(run: RunState, findings: Findings) -> None:
    """Carry out the findings about the liveness of hosts."""
    run.has_news |= findings.has_changed
    for member, incident in findings.written:
        run.write(member, incident)
    for member, verdict in findings.condemned:
        if not run.is_ending:  # A host that ends with the run is silent while it writes its files.
            run.condemn(member, verdict)


def excuse(run: RunState, member: Member) -> Excuse | None:
    """The excuse for a member's silence; when the run comes to its end, none but the user's own code."""
    life, machine = run.lives.get(member.replica), run.fleet.of(member.replica)
    is_heard = machine.name == run.fleet.home or not machine.is_silent
    if life is not None and is_heard and not life.seen.is_stopped and user_code.is_excused(run, life):
        return "away"
    if run.is_coming_to_its_end:
        return None
    if machine.name != run.fleet.home and machine.is_silent:
        return "unheard"
    return "stopped" if life is not None and life.seen.is_stopped else None


def described(run: RunState, member: Member) -> tuple[int, str]:
    """The pid of a member, 0 if none was seen, and its machine, '' at home."""
    life, name = run.lives.get(member.replica), run.fleet.name(member.replica)
    return 0 if life is None else life.seen.pid, "" if name == run.fleet.home else name


def _on_heartbeat(run: RunState, seen: Seen) -> None:
    """Handle a new heartbeat: the first one admits the host, which all others learn."""
    member, heartbeat = seen.member, seen.heartbeat
    run.adopting.discard(member.replica)
    if run.liveness.has(member):
        spoken = HeartbeatArrived(
            member, heartbeat.phase, heartbeat.steps, heartbeat.busy, heartbeat.firing, heartbeat.node
        )
        findings = run.liveness.handle(spoken, run.now)
        if heartbeat.phase == "gone":  # Its process ends by itself, and may have more to do before, which is not ours.
            findings.condemned.clear()
        apply_findings(run, findings)
    elif not run.is_ending:
        run.reasons.pop(member.replica, None)
        apply_findings(run, run.liveness.handle(HostAnnounced(member, heartbeat.phase), run.now))


def _judge(run: RunState, by: Member, refusal: ItemRefusal) -> None:
    """Handle items that a host has refused: their sender is named, and, if it persists, condemned."""
    accused, place = refusal.member, (by.replica, refusal.edge)
    life = run.lives.get(accused.replica)
    if run.is_ending or life is None or life.member != accused:
        return
    if run.fleet.edges.get(refusal.edge) != (leader(accused.replica).role, leader(by.replica).role):
        return  # The graph has no such edge between them: this host is not of the program.
    count_before = life.refusals.get(place, 0)
    if refusal.count <= count_before:
        return
    life.refusals[place] = refusal.count
    what = refusal.field, refusal.expected, refusal.found
    verdict = incidents.Misbehaved(str(by.replica), refusal.edge, *what, refusal.count)
    if not count_before:
        run.write(accused, incidents.ItemRefused(verdict))
    if refusal.count >= (1 if refusal.is_vote else REFUSALS_MAX):  # A refused vote would keep its round waiting.
        life.accusers.add(run.fleet.accuser(by.replica))
        if run.fleet.may_condemn(life.accusers, life.machine):
            run.condemn(accused, verdict)
