"""The time of a host that is the user's own: how long that may last, and when a script has come to its end.

It decides which life is ended because the user's code keeps it, and which scripts a run that is over waits for. Between
two steps a script is its user's: it evaluates, writes a checkpoint, reads data, or works behind its `with`. All of that
may last as long as it works. It is ended only where it did nothing for `UserTerms.idle`, or where it has lasted for
`UserTerms.away`; both are named in advance (`bounds`).

A life is in the user's code before its host's first heartbeat, while it reports that it is `away`, while its
interpreter is held, so that it sends nothing, and once its host has left.

Theory of operation, of the end. Once the outcome of a run is settled, hosts are told to exit. A script then leaves its
loop, and goes on behind its `with`; its process is *awaited*. It has come to its end by status 0. One that we end, or
that leaves with another status behind its `with`, is *unfinished*. One that died before it had the last model is
*owed* a next life, which is told to exit at once, and goes through its `with` with that model; on a machine that is not
the home, where that model is not, it is unfinished.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.ids import Replica, gang_number, leads_island, takes_island
from isthmus.runtime.supervision import bounds, incidents
from isthmus.runtime.supervision.bounds import Bound
from isthmus.runtime.supervision.home_state import Aside, RunState, TrackedLife
from isthmus.runtime.supervision.liveness import BEAT

FIRST_STEP: Final = seconds(30)
"""A script without a step for so long is named: it may never make one."""
COMPUTES: Final = seconds(3)
"""A silent process that was idle for less than this computes."""
SETTLED: Final = seconds(2)
"""What an absence has cost is known a step after it: reports come four times a second."""


def is_script(run: RunState, replica: Replica) -> bool:
    """Whether a host is a process of a user's script that the run has started."""
    return replica.role in run.fleet.user.scripts


def is_awaited(run: RunState, replica: Replica) -> bool:
    """Whether a run that is over waits for the end of this life: it is in a user's loop."""
    if run.outcome not in ("done", "stopped") or run.is_dismissing or not takes_island(replica):
        return False
    return (is_script(run, replica) or run.fleet.user.has_guests) and not run.fleet.of(replica).is_leaving


def is_owed(run: RunState, replica: Replica) -> bool:
    """Whether a run that is over gives this replica a life: its script has not come to its end."""
    if not run.is_ending or not leads_island(replica) or not is_script(run, replica) or not is_awaited(run, replica):
        return False
    return not (run.fleet.is_retired(replica) or replica in run.finished or replica in run.unfinished)


def is_users(run: RunState, life: TrackedLife) -> bool:
    """Whether a life that is away, or has left, has a thread of the user's: one of a task is away in its batches."""
    return life.seen.heartbeat.phase == "away" or (run.is_ending and is_awaited(run, life.member.replica))


def in_user_code(run: RunState, life: TrackedLife) -> bool:
    """Whether the user's code has the thread of a life."""
    replica, heartbeat = life.member.replica, life.seen.heartbeat
    if not life.seen.beats or heartbeat.phase == "gone":
        return is_script(run, replica)
    return heartbeat.phase == "away" or run.liveness.state(replica) == "away"


def is_excused(run: RunState, life: TrackedLife) -> bool:
    """Whether the silence of a life is the user's code, which holds the interpreter: it was away when it was heard
    last, or, of a loop, in that code, or it computes, which ours does not for long."""
    heartbeat = life.seen.heartbeat
    if heartbeat.phase in ("away", "gone"):
        return True
    is_loop = is_script(run, life.member.replica) or run.fleet.user.has_guests
    is_learner = takes_island(life.member.replica)
    return is_loop and is_learner and (heartbeat.outside > 0 or life.seen.idle < COMPUTES)


def judge(run: RunState) -> None:
    """Judge the lives that the user's code keeps; once a beat."""
    for life in list(run.lives.values()):
        replica, machine = life.member.replica, run.fleet.of(life.member.replica)
        is_heard = machine.name == run.fleet.home or not machine.is_silent
        if gang_number(replica) or not is_heard or not machine.has(life.member):
            continue
        _tell_return(run, life)
        if in_user_code(run, life):
            _judge(run, life)
        else:
            life.user_since = None
            life.warned -= {bounds.IDLE, bounds.AWAY}
            _judge_exit(run, life)
        _judge_notice(run, life)
    stop_if_all_leave(run)


def stop_if_all_leave(run: RunState) -> None:
    """Bring the run to its end once every learner leaves it by itself: scripts that make some epochs have ended it, and
    the last ones are to have its model; or all have trained what they may of their own data."""
    terms = run.fleet.user
    if run.is_stopping or run.is_ending or run.is_set_aside:
        return
    wanted = [each for each in run.fleet.learners if not run.fleet.is_retired(each)]
    heartbeats = [None if life is None else life.seen.heartbeat for life in map(run.lives.get, wanted)]
    have_loops = bool(terms.scripts) or terms.has_guests
    are_leaving = [
        each is not None and each.phase == "leaving" and (have_loops or each.spent is not None) for each in heartbeats
    ]
    if wanted and all(are_leaving) and not any(run.fleet.of(each).is_leaving for each in wanted):
        for life in map(run.lives.get, wanted):  # Their ends are those of the run: what they say of themselves is now.
            if life is not None and life.seen.heartbeat.spent is not None:
                run.write(life.member, msgspec.structs.replace(life.seen.heartbeat.spent, is_last=True))
        run.stop()


def _judge(run: RunState, life: TrackedLife) -> None:
    """Judge one whose thread the user's code has."""
    terms, member, since = run.fleet.user, life.member, went_away(run, life)
    life.exits_since = None
    lasted = Duration(run.now - since)
    is_learner = is_script(run, member.replica) and leads_island(member.replica)
    is_late = is_learner and lasted >= FIRST_STEP and not life.seen.heartbeat.steps and not run.is_ending
    if is_late and not life.has_told_first:
        life.has_told_first = True
        run.write(member, incidents.NeverStepped(lasted))
    idle = Duration(min(life.seen.idle, lasted))
    for bound, value in ((Bound(bounds.IDLE, terms.idle), idle), (Bound(bounds.AWAY, terms.away), lasted)):
        lingered = incidents.Lingered(bound.setting, value, bound.limit)
        bounds.judge(run, life, bound, value, partial(run.condemn, member, lingered))


def _judge_exit(run: RunState, life: TrackedLife) -> None:
    """End a script's host that does not exit though it could: a run that is over waits for the user's code alone."""
    if not run.is_ending or not is_awaited(run, life.member.replica):
        return
    life.exits_since = run.now if life.exits_since is None else life.exits_since
    end = partial(run.condemn, life.member, incidents.NotEnded(run.fleet.exit))
    bounds.judge(run, life, Bound(bounds.END, run.fleet.exit), Duration(run.now - life.exits_since), end)


def _judge_notice(run: RunState, life: TrackedLife) -> None:
    """Name the end of a learner that does not leave a home which is set aside; its station ends it."""
    asked, is_here = run.aside, life.machine == run.fleet.home
    if asked is not None and is_here and takes_island(life.member.replica) and life.seen.heartbeat.phase != "gone":
        bounds.judge(run, life, Bound(bounds.GRACE, asked.within), Duration(run.now - asked.at))


def outlasted_notice(aside: Aside, now: Instant) -> incidents.Lingered | None:
    """Why a learner was killed that had not left in time; None if it was earlier, and by something else.

    Its station counts beats from the notice on, the first of which may come at once: so it kills up to a beat earlier.
    """
    lasted = Duration(now - aside.at)
    return incidents.Lingered(bounds.GRACE, lasted, aside.within) if lasted >= aside.within - BEAT else None


def went_away(run: RunState, life: TrackedLife) -> Instant:
    """Note that the user's code has the thread of a life, if that is new; since when it has.

    Of one that reports it the absence is noted with that report: it may be over before the next beat.
    """
    if life.user_since is None:
        life.user_since = Instant(run.now - life.seen.heartbeat.outside)
        life.overwritten = life.seen.heartbeat.overwritten
    return life.user_since


def came_back(run: RunState, life: TrackedLife) -> None:
    """A life that was away reports that it steps again."""
    if life.user_since is not None and life.returned is None:
        life.returned = run.now, Duration(run.now - life.user_since)


def _tell_return(run: RunState, life: TrackedLife) -> None:
    """Record how long a life was away, once it is known what of its work was overwritten."""
    if life.returned is not None and run.now - life.returned[0] >= SETTLED:
        _, away = life.returned
        life.returned = None
        if not run.is_ending:
            lost = max(0, life.seen.heartbeat.overwritten - life.overwritten)
            run.write(life.member, incidents.WasAway(away, lost))


# -- the end -----------------------------------------------------------------------------------------------------------


def awaited(run: RunState) -> Iterator[TrackedLife]:
    """The lives that a run which is over waits for."""
    for life in run.lives.values():
        if run.is_ending and is_awaited(run, life.member.replica):
            yield life


def dismiss(run: RunState) -> None:
    """End the scripts that a run which is over waits for, by order."""
    if run.is_dismissing:
        return
    condemned = [life.member for life in awaited(run)]
    run.dismissed = {each for each in run.fleet.replicas if is_owed(run, each)}
    run.is_dismissing = run.has_news = True
    run.due.clear()
    for member in condemned:
        run.condemn(member, None)


def script_ended(run: RunState, replica: Replica, life: TrackedLife | None, ended: incidents.Ended) -> bool:
    """Note how a script has ended once its run is over; returns whether it is owed a next life."""
    if not is_owed(run, replica):
        return False
    if isinstance(ended.end, incidents.Exited) and ended.end.status == 0:
        run.finished.add(replica)
        run.has_changed = True
        return False
    if isinstance(ended.end, incidents.MachineLost | incidents.MachineTaken):
        return False
    had_model = life is None or (life.seen.heartbeat.phase == "gone" and life.seen.error is None)
    is_away = run.fleet.name(replica) != run.fleet.home  # The last model is at home, and no life gets it there.
    if _is_unknown(ended) and not is_away:
        return True
    if had_model or is_away or isinstance(ended.verdict, incidents.Lingered):
        leave_unfinished(run, replica, ended)
        return False
    return True


def _is_unknown(ended: incidents.Ended) -> bool:
    """Whether nobody knows how a life that we did not end has ended: no daemon watched it, or one that was not its
    parent, and to which the kernel does not tell it."""
    return isinstance(ended.end, incidents.Unseen) or (ended.end == incidents.Exited() and ended.verdict is None)


def leave_unfinished(run: RunState, replica: Replica, ended: incidents.Ended) -> None:
    """A script will not come to its end in this run."""
    run.unfinished[replica] = ended
    run.has_changed = True
