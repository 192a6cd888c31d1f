"""The start of a replica's next life: its number is taken and recorded; then it is tracked, if it has a machine."""

from __future__ import annotations

from isthmus.runtime.clock import seconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.home import endings, watch
from isthmus.runtime.supervision.home.restarts import BACKOFF_SECONDS
from isthmus.runtime.supervision.home.state import RunState
from isthmus.runtime.supervision.station_events import NoteLives


def start(run: RunState, replicas: list[Replica]) -> None:
    """Begin the next life of each replica that has none and should have one: take its number first.

    No number is taken while the numbers in use are unknown.
    """
    for replica in replicas:
        run.due.pop(replica, None)
    if run.is_unsure or run.is_ending:
        return
    gangs = dict.fromkeys(tuple(run.fleet.together(each)) for each in replicas if not run.fleet.is_retired(each))
    fresh = [gang for gang in gangs if not any(each in run.noting or run.fleet.is_tracked(each) for each in gang)]
    if fresh:
        numbers: dict[Replica, int] = {}
        for gang in fresh:
            numbers |= dict.fromkeys(gang, 1 + max(run.floor, *(run.newest.get(each, 0) for each in gang)))
        run.noting.update(numbers)
        run.commands.append(NoteLives(tuple(Member(*each) for each in numbers.items())))


def mend(run: RunState) -> None:
    """Have the rest of an island killed whose processes do not all have the same life.

    After a ledger was lost, the fate of the other processes is unknown.
    """
    for gang in run.fleet.gangs:
        numbers = {each: run.newest.get(each) for each in gang if run.fleet.is_tracked(each)}
        missing = next((each for each in gang if each not in numbers), None)
        if numbers and (missing is not None or len(set(numbers.values())) > 1):
            for each, number in numbers.items():
                watch.condemn(run, Member(each, number or 0), incidents.Bereft(str(missing or gang[0])))


def start_later(run: RunState, replica: Replica) -> None:
    """Begin the next life of a replica after the longest back-off, when there may be room for it."""
    run.due[replica] = run.after(seconds(BACKOFF_SECONDS[-1]))


def noted(run: RunState, members: tuple[Member, ...]) -> None:
    """The numbers are recorded: their lives may run, where there is a machine for them.

    No replica is moved before this, because the next daemon looks for the life of the newest number on the machine that
    the journal names.
    """
    for member in members:
        replica, is_next = member.replica, member.replica in run.noting
        run.noting.discard(replica)
        run.newest[replica] = max(member.incarnation, run.newest.get(replica, 0))
        if is_next and not run.is_ending and not run.fleet.is_retired(replica) and _has_place(run, replica):
            run.fleet.of(replica).track(member, is_new=True)
    run.has_news = True


def not_noted(run: RunState, members: tuple[Member, ...], error: str) -> None:
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
        endings.end_run(run, "failed", incidents.Homeless(str(replica), last))
    return has_place
