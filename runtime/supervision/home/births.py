"""How the next life of a replica begins: its number is taken, and noted; then it is tracked, where there is a place."""

from __future__ import annotations

from isthmus.runtime.clock import seconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.home import endings
from isthmus.runtime.supervision.home.restarts import BACKOFF_SECONDS
from isthmus.runtime.supervision.home.state import RunState
from isthmus.runtime.supervision.station_events import NoteLives


def start(run: RunState, replicas: list[Replica]) -> None:
    """Begin the next life of each that has none and is to have one: take its number, before anything else. While
    nobody knows which numbers there were, none is taken."""
    for replica in replicas:
        run.due.pop(replica, None)
    if run.is_unsure or run.is_ending:
        return
    idle = [each for each in replicas if each not in run.noting and not run.fleet.is_tracked(each)]
    fresh = [each for each in idle if each not in run.fleet.retired]
    if fresh:
        run.noting.update(fresh)
        numbers = {replica: 1 + max(run.floor, run.newest.get(replica, 0)) for replica in fresh}
        run.commands.append(NoteLives(tuple(Member(*each) for each in numbers.items())))


def start_later(run: RunState, replica: Replica) -> None:
    """Begin the next life of a replica once there may be room for it."""
    run.due[replica] = run.after(seconds(BACKOFF_SECONDS[-1]))


def noted(run: RunState, members: tuple[Member, ...]) -> None:
    """The numbers are theirs: the lives may be, where there is a machine for them. No replica is moved before this,
    because the next daemon looks for the life of the newest number where the journal says."""
    for member in members:
        replica, is_next = member.replica, member.replica in run.noting
        run.noting.discard(replica)
        run.newest[replica] = max(member.incarnation, run.newest.get(replica, 0))
        if is_next and not run.is_ending and replica not in run.fleet.retired and _has_place(run, replica):
            run.fleet.of(replica).track(member, is_new=True)
    run.has_news = True


def not_noted(run: RunState, members: tuple[Member, ...], error: str) -> None:
    """The disk takes no number now; it may later."""
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
        endings.end_run(run, "failed", incidents.Homeless(str(replica), last))
    return has_place
