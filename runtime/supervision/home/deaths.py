"""Consequences of the end of a life: the next one, at once or after a back-off, a replica given up, or a failed run.

A life ends because its station reports so, because its machine is lost or taken away, or because another one has a
higher number. The cause decides how soon the next one begins.
"""

from __future__ import annotations

from isthmus.runtime.ids import Member
from isthmus.runtime.membership.messages import HostEnded
from isthmus.runtime.roles import LEARNER
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.home import births, endings, watch
from isthmus.runtime.supervision.home.machine import Machine
from isthmus.runtime.supervision.home.state import Fallen, RunState
from isthmus.runtime.supervision.messages import Gone, Seen


def bury(run: RunState, machine: Machine, gone: Gone) -> None:
    """Record the end of a life; the next one takes its place, unless the run is ending."""
    member, replica = gone.member, gone.member.replica
    machine.forget(member)
    life = run.lives.pop(replica, None)
    for name, value in (("cpu_seconds", gone.cpu_seconds), ("bytes_sent", float(gone.bytes_sent))):
        key = f"{replica.role}.{name}"
        run.used[key] = run.used.get(key, 0.0) + value
    run.adopting.discard(replica)
    run.has_changed = run.has_news = True
    ended = incidents.Ended(gone.end, None if life is None else life.verdict, gone.error)
    run.reasons[replica] = ended
    if not run.is_ending:
        run.write(member, ended)
    watch.find(run, run.roll.take(HostEnded(member), run.now))
    fallen = _fallen(run, member, Fallen(ended, None if life is None else life.served_at))
    if fallen is None:
        return
    first = Member(run.fleet.lead(replica), member.incarnation)
    if first.replica.role == LEARNER:
        run.repeats.ended(first.replica, fallen.ended.error, fallen.served_at, run.now)
    if not run.is_ending and (repeated := run.repeats.common(run.fleet.learners)) is not None:
        endings.end_run(run, "failed", incidents.ProgramFailed(repeated.error, repeated.lives))
    if not run.is_ending and not (run.is_stopping and first.replica.role == LEARNER and _has_learner(run)):
        _follow(run, first, fallen)


def _fallen(run: RunState, member: Member, fallen: Fallen) -> Fallen | None:
    """The first end among the processes of an island, once all have ended; else None, and the others are condemned.

    For a replica that is alone, its own end.
    """
    gang = run.fleet.together(member.replica)
    if len(gang) == 1:
        return fallen
    lead = run.lives.get(gang[0])
    if lead is not None:  # A follower serves from when its leader does.
        fallen = Fallen(fallen.ended, lead.served_at)
    fallen = run.fallen.setdefault(gang[0], fallen)
    others = [each for each in gang if run.fleet.is_tracked(each)]
    for each in () if run.is_ending else others:
        watch.condemn(run, Member(each, run.newest[each]), incidents.Bereft(str(member.replica)))
    return None if others else run.fallen.pop(gang[0])


def lose(run: RunState, machine: Machine, end: incidents.End) -> None:
    """Count every life on a machine as ended, even if it still runs there."""
    for member in machine.members():
        life = run.lives.get(member.replica)
        seen = life.seen if life is not None and life.member == member else Seen(member, 0)
        bury(run, machine, Gone(member, end, seen.error, seen.said.cpu_seconds, seen.said.bytes_sent))


def _has_learner(run: RunState) -> bool:
    """Whether a learner can still give the last answers, so that a restart would only delay the end."""
    return any(life.seen.said.phase in watch.SERVING for life in run.learners)


def _follow(run: RunState, former: Member, fallen: Fallen) -> None:
    """Schedule the next life of a replica, unless its lives end again and again."""
    replica, ended, served_at = former.replica, fallen.ended, fallen.served_at
    if replica in run.fleet.retired:
        return
    is_unreached = isinstance(ended.verdict, incidents.Unreached)
    if is_unreached:
        run.reach.ended(replica)
    if is_unreached or isinstance(ended.end, incidents.MachineLost | incidents.MachineTaken):
        births.start(run, [replica])  # The program is not at fault.
        return
    if isinstance(ended.end, incidents.NotStarted):  # Nor here: there may be room later.
        births.start_later(run, replica)
        return
    if isinstance(ended.verdict, incidents.Misbehaved):  # It counts as a failure, however long it served.
        served_at = None
    delay = run.restarts.delay(replica, served_at, run.now)
    if delay is None:
        _give_up(run, former, ended)
    elif delay:
        run.due[replica] = run.after(delay)
    else:
        births.start(run, [replica])


def _give_up(run: RunState, former: Member, ended: incidents.Ended) -> None:
    """Give a replica no further life: the others go on, if the run can do without it."""
    replica, lives = former.replica, run.restarts.failures(former.replica)
    if not run.fleet.is_spare(replica):
        endings.end_run(run, "failed", incidents.Hopeless(str(replica), lives, ended))
        return
    run.fleet.retired[replica] = "given up"
    run.write(former, incidents.GivenUp(lives, ended))
    run.has_changed = True
