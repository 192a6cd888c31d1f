"""Variants of the code that are broken on purpose, one for each rule whose loss would be felt by somebody.

Each is a function that breaks the code by a monkeypatch. `make soak` searches the seed that catches each; `make test`
replays it. Run as a program, this searches:

    python -m tests.programs.mutants
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from isthmus.ops import accounts, inner_step, memory, merge, pacer
from isthmus.programs.simulate import run
from isthmus.runtime import connections, credit, meetings, messages, quorum, session
from isthmus.runtime.sim import ledger as sim_ledger
from isthmus.runtime.sim import life
from isthmus.runtime.supervision import home, machine, station

Break = Callable[[pytest.MonkeyPatch], None]
SEEDS: Final = 200


def counters_not_reset(patch: pytest.MonkeyPatch) -> None:
    """A learner goes on counting from the adoption before: its answers hold tokens that are merged."""
    reopen = accounts.FragmentLedger._reopen

    def broken(self: Any, version: Any) -> None:
        begin = self.begin
        reopen(self, version)
        self.begin = begin

    patch.setattr(accounts.FragmentLedger, "_reopen", broken)


def pulls_before_updates(patch: pytest.MonkeyPatch) -> None:
    """A learner answers pulls before it adopts the updates that have come with them."""
    call = inner_step.InnerStep.__call__

    def broken(self: Any, batch: Any, update: Any = None, pull: Any = None, progress: Any = None) -> Any:
        if pull and update and self._phase == "stepping":
            answers = [each for request in pull.values() for each in self._answer(request)]
            yield answers
            return (yield from call(self, batch, update, None, progress))
        return (yield from call(self, batch, update, pull, progress))

    patch.setattr(inner_step.InnerStep, "__call__", broken)


def merged_as_they_arrive(patch: pytest.MonkeyPatch) -> None:
    """A shard merges in the order in which answers came."""

    def disordered(items: Any, key: Any = None) -> list[Any]:
        return sorted(items, key=lambda vote: -vote["end"]) if key is not None else sorted(items)

    patch.setattr(merge, "sorted", disordered, raising=False)


def without_fencing(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back goes on under the epoch of its former life."""
    begin = merge.Merge.open

    def broken(self: Any, context: Any) -> None:
        begin(self, context)
        self._epoch = 1

    patch.setattr(merge.Merge, "open", broken)


def final_phase_skipped(patch: pytest.MonkeyPatch) -> None:
    """A shard says that it is over once the tokens are spent."""
    patch.setattr(pacer.Pacer, "_open_final", lambda self: [])


def quorum_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A round waits for one answer more than there can be."""
    patch.setattr(quorum.OpenRound, "has_quorum", lambda self, live: len(self.votes) > live)


def connection_number_ignored(patch: pytest.MonkeyPatch) -> None:
    """A host welcomes a connection that was begun before the present one, and takes its messages."""
    welcome = connections.Connections.welcome

    def broken(self: Any, peer: Any, *more: Any) -> Any:
        peer.accepted = 0
        return welcome(self, peer, *more)

    patch.setattr(connections.Connections, "welcome", broken)
    patch.setattr(session.Session, "_unsealed", lambda self, frame, most: messages.unseal(frame, most)[1:])


def stale_incarnation_accepted(patch: pytest.MonkeyPatch) -> None:
    """A host that is told of the next life of a replica goes on with the life that it knows."""
    take = meetings.Meetings.take

    def broken(self: Any, rows: Any, keys: Any) -> None:
        known = {str(replica): member.incarnation for replica, member in self.live.items()}
        take(self, [[row[0], known.get(row[0], row[1]), *row[2:]] for row in rows], keys)

    patch.setattr(meetings.Meetings, "take", broken)


def credit_leaked(patch: pytest.MonkeyPatch) -> None:
    """An eighth of the bytes that a host takes is never told to whom sent them."""
    take = credit.Intake.take
    patch.setattr(credit.Intake, "take", lambda self, cost: take(self, cost - cost // 8))


def item_credit_leaked(patch: pytest.MonkeyPatch) -> None:
    """Credit in items is told as what is new instead of as a total, and lost with a connection."""

    def give(self: Any, edge: int, count: int) -> None:
        self.news[edge] = self.news.get(edge, 0) + count

    patch.setattr(credit.Grants, "give", give)
    patch.setattr(credit.Grants, "hear", lambda self, totals: list(totals.items()))


def strangers_dropped(patch: pytest.MonkeyPatch) -> None:
    """A host gives its core what strangers send, which drops it."""
    channel = life.WireChannel
    patch.setattr(life, "WireChannel", lambda member, **more: channel(member, **{**more, "holds_strangers": False}))


def end_told_once(patch: pytest.MonkeyPatch) -> None:
    """A station tells only once how a life ended: where that report is lost, nobody hears of it."""
    report = station.Station._report

    def broken(self: Any, *replicas: Any) -> Any:
        told = report(self, *replicas)
        for gone in self._ended.values():
            self._told_once = {*getattr(self, "_told_once", set()), gone.member}
        known = getattr(self, "_told_before", set())
        self._told_before = getattr(self, "_told_once", set())
        ended = tuple(gone for gone in told.report.ended if gone.member not in known)
        return type(told)(msgspec.structs.replace(told.report, ended=ended))

    patch.setattr(station.Station, "_report", broken)


def numbers_not_noted(patch: pytest.MonkeyPatch) -> None:
    """A home gives numbers that its ledger does not know of."""
    patch.setattr(sim_ledger.SimulatedLedger, "give", lambda self, members: None)


def adopted_at_once(patch: pytest.MonkeyPatch) -> None:
    """A new daemon tells who is live before the hosts that it adopts have spoken."""
    begin = home.Home._begin

    def broken(self: Any, event: Any) -> None:
        begin(self, event)
        self._adopting.clear()

    patch.setattr(home.Home, "_begin", broken)


def stop_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A daemon that takes over does not know that the run is to stop."""
    recall = home.Home._recall

    def broken(self: Any, journal: Any) -> None:
        recall(self, msgspec.structs.replace(journal, is_stopping=False))

    patch.setattr(home.Home, "_recall", broken)


def late_orders_obeyed(patch: pytest.MonkeyPatch) -> None:
    """A station obeys orders that come behind newer ones."""
    obey = station.Station._obey

    def broken(self: Any, orders: Any) -> Any:
        self._obeyed = station.Stamp(-1)
        return obey(self, orders)

    patch.setattr(station.Station, "_obey", broken)


def lost_machine_waited_for(patch: pytest.MonkeyPatch) -> None:
    """What was on a machine that is lost counts as being there."""
    patch.setattr(machine.Machine, "beat", lambda self: False)


def stopped_hosts_killed(patch: pytest.MonkeyPatch) -> None:
    """A silence is excused by nothing: hosts are replaced whose machine is not heard of."""
    patch.setattr(home.Home, "_excuse", lambda self, member: None)


def ledger_believed(patch: pytest.MonkeyPatch) -> None:
    """Where a ledger was lost, numbers are counted from the beginning again."""
    patch.setattr(sim_ledger.SimulatedLedger, "is_lost", lambda self, whose: False)


def model_begun_anew(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back lets learners begin fragments that were merged, where none of them holds them."""
    patch.setattr(memory.Memory, "fresh", lambda self, unborn, context: unborn)


def equal_weights(patch: pytest.MonkeyPatch) -> None:
    """All answers weigh the same, however many tokens they hold."""
    patch.setattr(merge, "weight", lambda tokens, steps: float(steps > 0))


def oldest_recovered(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back goes on from the oldest version that it is given."""
    begin = merge.Merge._begin

    def broken(self: Any, round: Any, answers: Any, record: Any) -> Any:
        oldest = sorted(answers, key=lambda vote: vote["base"] or [0, 0])[:1]
        return begin(self, round, oldest, record)

    patch.setattr(merge.Merge, "_begin", broken)


MUTANTS: Final[tuple[tuple[Break, str], ...]] = (
    (quorum_off_by_one, "decoupled-diloco"),
    (counters_not_reset, "decoupled-diloco"),
    (pulls_before_updates, "decoupled-diloco"),
    (without_fencing, "decoupled-diloco"),
    (connection_number_ignored, "decoupled-diloco"),
    (merged_as_they_arrive, "decoupled-diloco"),
    (stale_incarnation_accepted, "decoupled-diloco"),
    (credit_leaked, "decoupled-diloco"),
    (item_credit_leaked, "data-parallel"),
    (final_phase_skipped, "decoupled-diloco"),
    (strangers_dropped, "decoupled-diloco"),
    (end_told_once, "decoupled-diloco"),
    (numbers_not_noted, "decoupled-diloco"),
    (adopted_at_once, "decoupled-diloco"),
    (stop_forgotten, "decoupled-diloco"),
    (late_orders_obeyed, "decoupled-diloco"),
    (lost_machine_waited_for, "decoupled-diloco"),
    (stopped_hosts_killed, "decoupled-diloco"),
    (ledger_believed, "decoupled-diloco"),
    (model_begun_anew, "decoupled-diloco"),
    (equal_weights, "decoupled-diloco"),
    (oldest_recovered, "decoupled-diloco"),
)
"""Each with the program that shows it: Queue edges between hosts are in few."""


def violation_of(broken: Break, seed: int, program: str) -> str | None:
    """What a seed objects to while the code is broken."""
    with pytest.MonkeyPatch.context() as patch:
        broken(patch)
        return run(seed, program).violation


def search(broken: Break, program: str) -> tuple[int, str] | None:
    """The first seed that catches a variant, with what it says."""
    for seed in range(SEEDS):
        violation = violation_of(broken, seed, program)
        if violation is not None:
            return seed, violation
    return None


def main(names: list[str]) -> int:
    """Search for all variants, or those named; how many nothing catches."""
    survivors = 0
    for broken, program in MUTANTS:
        if names and broken.__name__ not in names:
            continue
        found = search(broken, program)
        survivors += found is None
        told = f"seed {found[0]:>3}  {found[1].splitlines()[0][:120]}" if found else f"not caught by {SEEDS} seeds"
        print(f"{broken.__name__:<28} {told}", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
