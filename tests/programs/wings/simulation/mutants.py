"""Variants of the code that are broken on purpose, one for each rule whose loss would be felt by somebody.

Each is a function that breaks the code by a monkeypatch. `make soak` searches the seed that catches each; `make test`
replays it. Run as a program, this searches:

    python -m tests.programs.wings.simulation.mutants
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest

from isthmus.ops.data import batches_node
from isthmus.ops.exchange import token_accounts
from isthmus.ops.learner import inner_step
from isthmus.ops.recovery import hold
from isthmus.ops.syncer import merge, merge_books, pacer, schedule
from isthmus.programs.wings.simulation import searches
from isthmus.programs.wings.simulation.seeds import run, shape_of
from isthmus.programs.wings.simulation.universe import Outcome
from isthmus.runtime.cores import quorum_core as quorum
from isthmus.runtime.daemon import home_daemon, host_endpoint, ledger, site
from isthmus.runtime.daemon.ledger import LedgerError
from isthmus.runtime.host import own_process as meetings
from isthmus.runtime.sim import host as life
from isthmus.runtime.sim.faults import Hang, Join, KillDaemon, Stop
from isthmus.runtime.sim.universe import HOME
from isthmus.runtime.supervision import fleet, home, lives, station, watch
from isthmus.runtime.supervision.station_events import KillProcess, LivesNoted
from isthmus.runtime.wire import connections, protocol_credit, protocol_messages, protocol_session

Break = Callable[[pytest.MonkeyPatch], None]
SEEDS: Final = 300
DEATHS: Final = "deaths"
"""In place of a program: seeds of `isthmus simulate world --deaths`."""


def counters_not_reset(patch: pytest.MonkeyPatch) -> None:
    """A learner goes on counting from the adoption before: its answers hold tokens that are merged."""
    reopen = token_accounts.FragmentLedger._reopen

    def broken(self: Any, version: Any) -> None:
        begin = self.begin
        reopen(self, version)
        self.begin = begin

    patch.setattr(token_accounts.FragmentLedger, "_reopen", broken)


def pulls_before_updates(patch: pytest.MonkeyPatch) -> None:
    """A learner answers pulls before it adopts the updates that have come with them."""
    call = inner_step.InnerStep.__call__

    def broken(
        self: Any,
        batch: Any,
        update: Any = None,
        pull: Any = None,
        control: Any = None,
        cursor: Any = None,
        loan: Any = None,
    ) -> Any:
        if pull and update and self._phase == "stepping":
            answers = self._answer(pull)
            yield answers
            return (yield from call(self, batch, update, None, control, cursor, loan))
        return (yield from call(self, batch, update, pull, control, cursor, loan))

    patch.setattr(inner_step.InnerStep, "__call__", broken)


def merged_as_they_arrive(patch: pytest.MonkeyPatch) -> None:
    """A shard merges in the order in which answers came."""

    def disordered(items: Any, key: Any = None) -> list[Any]:
        return sorted(items, key=lambda vote: -vote["end"]) if key is not None else sorted(items)

    patch.setattr(merge, "sorted", disordered, raising=False)


def without_fencing(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back goes on under the epoch of its former life."""
    step = merge.Merge._merge

    def broken(self: Any, *arguments: Any) -> Any:
        self._epoch = 1
        return step(self, *arguments)

    patch.setattr(merge.Merge, "_merge", broken)


def final_phase_skipped(patch: pytest.MonkeyPatch) -> None:
    """A shard says that it is over once the tokens are spent."""
    patch.setattr(pacer.Pacer, "_open_final", lambda self: [])


def quorum_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A round waits for one answer more than there can be."""
    patch.setattr(quorum.OpenRound, "has_quorum", lambda self: len(self.votes) > self.live_count)


def connection_number_ignored(patch: pytest.MonkeyPatch) -> None:
    """A host welcomes a connection that was begun before the present one, and takes its messages."""
    welcome = connections.Connections.welcome

    def broken(self: Any, peer: Any, *more: Any) -> Any:
        peer.accepted = 0
        return welcome(self, peer, *more)

    patch.setattr(connections.Connections, "welcome", broken)
    patch.setattr(
        protocol_session.Session, "_unsealed", lambda self, frame, most: protocol_messages.unseal(frame, most)[1:]
    )


def stale_incarnation_accepted(patch: pytest.MonkeyPatch) -> None:
    """A host that is told of the next life of a replica goes on with the life that it knows."""
    follow = meetings.Meetings.follow

    def broken(self: Any, news: Any) -> None:
        known = {str(replica): member.incarnation for replica, member in self.live.items()}
        follow(self, news._replace(rows=[[name, known.get(name, life), *more] for name, life, *more in news.rows]))

    patch.setattr(meetings.Meetings, "follow", broken)


def credit_leaked(patch: pytest.MonkeyPatch) -> None:
    """An eighth of the bytes that a host takes is never told to whom sent them."""
    consume = protocol_credit.Intake.consume
    patch.setattr(protocol_credit.Intake, "consume", lambda self, cost: consume(self, cost - cost // 8))


def item_credit_leaked(patch: pytest.MonkeyPatch) -> None:
    """Credit in items is told as what is new instead of as a total, and lost with a connection."""

    def give(self: Any, edge: int, count: int) -> None:
        self.news[edge] = self.news.get(edge, 0) + count

    patch.setattr(protocol_credit.Grants, "give", give)
    patch.setattr(protocol_credit.Grants, "receive", lambda self, totals: list(totals.items()))


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


def adopted_at_once(patch: pytest.MonkeyPatch) -> None:
    """A new daemon tells who is live before the hosts that it adopts have spoken."""
    begin = lives.begin

    def broken(run: Any, event: Any) -> None:
        begin(run, event)
        run.adopting.clear()

    patch.setattr(lives, "begin", broken)


def stop_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A daemon that takes over does not know that the run is to stop."""
    recall = lives.recall

    def broken(run: Any, journal: Any) -> None:
        recall(run, msgspec.structs.replace(journal, is_stopping=False))

    patch.setattr(lives, "recall", broken)


def heard_before_it_has_begun(patch: pytest.MonkeyPatch) -> None:
    """A home acts on what it hears before it has taken over what the daemon before it has left."""
    handle = home.Home.handle

    def broken(self: Any, event: Any, now: Any) -> Any:
        self._has_begun = True
        return handle(self, event, now)

    patch.setattr(home.Home, "handle", broken)


def late_orders_obeyed(patch: pytest.MonkeyPatch) -> None:
    """A station obeys orders that come behind newer ones."""
    obey = station.Station._obey

    def broken(self: Any, orders: Any) -> Any:
        self._obeyed = station.Stamp(-1)
        return obey(self, orders)

    patch.setattr(station.Station, "_obey", broken)


def lost_machine_waited_for(patch: pytest.MonkeyPatch) -> None:
    """What was on a machine that is lost counts as being there."""
    patch.setattr(fleet.MachineLives, "beat", lambda self, **_: False)


def stopped_hosts_killed(patch: pytest.MonkeyPatch) -> None:
    """A silence is excused by nothing: hosts are replaced whose machine is not heard of."""
    patch.setattr(watch, "excuse", lambda run, member: None)


def ledger_believed(patch: pytest.MonkeyPatch) -> None:
    """Where a ledger was lost, numbers are counted from the beginning again."""
    patch.setattr(ledger.Ledger, "is_lost", lambda self, whose: False)


def model_begun_anew(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back lets learners begin fragments that were merged, where none of them holds them."""
    patch.setattr(hold.ShardMemory, "fresh", lambda self, unborn, context: unborn)


def _weighing(patch: pytest.MonkeyPatch, weight: Callable[[int, int], float]) -> None:
    for each in (merge, merge_books):
        patch.setattr(each, "weight", weight)


def equal_weights(patch: pytest.MonkeyPatch) -> None:
    """All answers weigh the same, however many tokens they hold."""
    _weighing(patch, lambda tokens, steps: float(steps > 0))


def oldest_recovered(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back goes on from the oldest version that it is given."""
    begin = merge_books.MergeBooks._begin

    def broken(self: Any, round: Any, answers: Any, record: Any) -> Any:
        oldest = sorted(answers, key=lambda vote: vote["base"] or [0, 0])[:1]
        return begin(self, round, oldest, record)

    patch.setattr(merge_books.MergeBooks, "_begin", broken)


def recovered_from_the_first(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back waits for nobody but the first who answers."""
    patch.setattr(pacer, "RECOVERY_GRACE", 0)


def recovered_from_one(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back asks one learner only."""
    holding = schedule.LearnerRoster.holding
    patch.setattr(schedule.LearnerRoster, "holding", lambda self, fragment: holding(self, fragment)[:1])


def work_since_dropped(patch: pytest.MonkeyPatch) -> None:
    """A learner adopts what a shard that came back publishes, also where it holds just that and has trained on."""
    patch.setattr(inner_step.InnerStep, "_is_anew", lambda _, update: True)


def merged_twice(patch: pytest.MonkeyPatch) -> None:
    """A shard counts what it merges of a slot twice, once it has seen that it was booked once."""
    book, publish = token_accounts.FragmentAccount.merge, token_accounts.FragmentAccount.publish
    again: list[tuple[tuple[int, int], int]] = []

    def noted(self: Any, slot: int, incarnation: int, begin: int, end: int) -> None:
        book(self, slot, incarnation, begin, end)
        again.append(((slot, incarnation), end - begin))

    def broken(self: Any, version: tuple[int, int]) -> None:
        publish(self, version)
        for of, tokens in again:
            self.merged[of] += tokens
        again.clear()

    patch.setattr(token_accounts.FragmentAccount, "merge", noted)
    patch.setattr(token_accounts.FragmentAccount, "publish", broken)


def weights_of_tokens(patch: pytest.MonkeyPatch) -> None:
    """An answer weighs as much as it has tokens, however many steps they took."""
    _weighing(patch, lambda tokens, steps: float(tokens))


def weights_of_steps(patch: pytest.MonkeyPatch) -> None:
    """An answer weighs as much as it has steps."""
    _weighing(patch, lambda tokens, steps: float(steps))


def forgotten_kept(patch: pytest.MonkeyPatch) -> None:
    """A host that is told that a life is gone keeps its connection."""
    patch.setattr(connections.Connections, "forget", lambda self, member: None)


def window_ignored(patch: pytest.MonkeyPatch) -> None:
    """A host sends on, however much is under way."""
    patch.setattr(protocol_credit.Window, "may_go", lambda self, cost, pace: True)

    def spend(self: Any, cost: int) -> None:
        self._sent += cost

    def acknowledge(self: Any, total: int) -> None:
        self._consumed = total

    patch.setattr(protocol_credit.Window, "spend", spend)
    patch.setattr(protocol_credit.Window, "acknowledge", acknowledge)


def window_ignored_by_both(patch: pytest.MonkeyPatch) -> None:
    """A host sends on, however much is under way, and the other side lets it."""
    window_ignored(patch)

    def receive(self: Any, cost: int) -> None:
        self._received += cost

    patch.setattr(protocol_credit.Intake, "receive", receive)


def joiner_not_in_the_final_round(patch: pytest.MonkeyPatch) -> None:
    """A final round is not asked for again when a learner begins to step."""
    renewals = pacer.Pacer._renewals

    def broken(self: Any) -> Any:
        held = {key: found for key, found in self._rounds.items() if found.item["kind"] == "final"}
        for key in held:
            del self._rounds[key]
        renewed = renewals(self)
        self._rounds.update(held)
        return renewed

    patch.setattr(pacer.Pacer, "_renewals", broken)


def newcomer_not_in_the_final_round(patch: pytest.MonkeyPatch) -> None:
    """A final round is of those learners only that are in their first life."""
    finishing = schedule.LearnerRoster.finishing
    patch.setattr(
        schedule.LearnerRoster, "finishing", lambda self: [each for each in finishing(self) if each.incarnation == 1]
    )


def begun_from_zero(patch: pytest.MonkeyPatch) -> None:
    """Every life of a learner begins with the first batch of its slot."""
    begin = batches_node.beginning

    def broken(*more: Any) -> Any:
        found = begin(*more)
        return found and found._replace(position=0)

    patch.setattr(batches_node, "beginning", broken)


def begun_after_one_fragment(patch: pytest.MonkeyPatch) -> None:
    """A shard tells a new life how far one of its fragments is, and not the furthest."""
    place = schedule.Placing._place

    def broken(self: Any, *more: Any) -> Any:
        self._positions = dict(list(self._positions.items())[:1])
        return place(self, *more)

    patch.setattr(schedule.Placing, "_place", broken)


def begun_after_one_shard(patch: pytest.MonkeyPatch) -> None:
    """A new life begins after what the first shard that speaks has merged."""
    begin = batches_node.beginning

    def broken(places: Any, *more: Any) -> Any:
        return begin([{**place, "shards": 1} for place in places][:1], *more)

    patch.setattr(batches_node, "beginning", broken)


# -- of the shells around supervision, chosen before any seed was tried on them ----------------------------------------


def noted_after_the_start(patch: pytest.MonkeyPatch) -> None:
    """Ledgers record lives after their processes were asked for, not before: of the home and of the station.

    Of either alone nobody would notice: what one has not recorded, the other has.
    """

    def later(shell: Any, write: Any, members: Any) -> None:
        def note() -> None:
            with suppress(LedgerError):
                write(members)

        shell._ground.clock.call_soon(note)
        shell._driver.feed(LivesNoted(members))

    patch.setattr(site.Site, "_note_lives", lambda self, members: later(self, self._ledger.begin, members))
    patch.setattr(home_daemon.Daemon, "_note_lives", lambda self, members: later(self, self._ledger.give, members))


def early_end_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The end of a process is not told where its host has not spoken before."""
    ended = site.Site._ended

    def broken(self: Any, member: Any, *more: Any) -> None:
        if member in self.shown:
            ended(self, member, *more)

    patch.setattr(site.Site, "_ended", broken)


def roster_once_for_each_replica(patch: pytest.MonkeyPatch) -> None:
    """A host that came back is sent no roster, where its former life was sent one by this daemon."""
    tell = host_endpoint.HostEndpoint.tell

    def broken(self: Any, command: Any, keys: Any) -> None:
        sent = self.__dict__.setdefault("sent", {})
        for member in command.members:
            is_first = sent.setdefault(member.replica, member) == member
            told = msgspec.structs.replace(command, members=(member,), roster=command.roster if is_first else None)
            tell(self, told, keys)

    patch.setattr(host_endpoint.HostEndpoint, "tell", broken)


def refused_start_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A process that could not be started is not told of."""
    start = site.Site._start_process

    def broken(self: Any, member: Any) -> None:
        feed, self._driver.feed = self._driver.feed, lambda event: None
        try:
            start(self, member)
        finally:
            self._driver.feed = feed

    patch.setattr(site.Site, "_start_process", broken)


def condemned_kept_by_outposts(patch: pytest.MonkeyPatch) -> None:
    """An outpost keeps the processes of lives that the home has given up."""
    perform = site.Site._perform

    def broken(self: Any, command: Any) -> None:
        if not (isinstance(command, KillProcess) and not self.station._is_at_home):
            perform(self, command)

    patch.setattr(site.Site, "_perform", broken)


def superseded_home_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A home is not told that another one has taken its place."""
    patch.setattr(home_daemon.Daemon, "_turned_away", lambda self, command: None)


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
    (adopted_at_once, "decoupled-diloco"),
    (late_orders_obeyed, DEATHS),
    (lost_machine_waited_for, "decoupled-diloco"),
    (stopped_hosts_killed, "decoupled-diloco"),
    (ledger_believed, "decoupled-diloco"),
    (model_begun_anew, "decoupled-diloco"),
    (equal_weights, "decoupled-diloco"),
    (oldest_recovered, "decoupled-diloco"),
    (recovered_from_the_first, "decoupled-diloco"),
    (recovered_from_one, "decoupled-diloco"),
    (work_since_dropped, "decoupled-diloco"),
    (merged_twice, "decoupled-diloco"),
    (weights_of_tokens, "decoupled-diloco"),
    (weights_of_steps, "decoupled-diloco"),
    (forgotten_kept, "decoupled-diloco"),
    (window_ignored, "decoupled-diloco"),
    (window_ignored_by_both, "decoupled-diloco"),
    (joiner_not_in_the_final_round, "decoupled-diloco"),
    (newcomer_not_in_the_final_round, "decoupled-diloco"),
    (begun_from_zero, "decoupled-diloco"),
    (begun_after_one_fragment, "decoupled-diloco"),
    (begun_after_one_shard, "decoupled-diloco"),
    (early_end_forgotten, "decoupled-diloco"),
    (roster_once_for_each_replica, "decoupled-diloco"),
    (refused_start_forgotten, "decoupled-diloco"),
    (superseded_home_goes_on, DEATHS),
)
"""Each with the program that shows it: Queue edges between hosts are in few; a home that moves is among deaths."""


NOTED_STOP: Final = replace(
    shape_of(3), faults=(KillDaemon(HOME, 1.0, 1, at=2.0), Stop(at=2.0)), storms=(), steps=40, step_ms=100.0
)
"""The daemon of the home dies after it has noted a stop, and before it orders one: no seed of the first SEEDS has that
since a first merge waits. It catches `stop_forgotten`."""
HUNG: Final = replace(
    shape_of(3), faults=(Hang("learner/0", 24.0, at=2.0),), storms=(), steps=150, step_ms=300.0, late=5.0
)
"""A host hangs until it is condemned, and goes on, on a machine that is not the home; it catches
`condemned_kept_by_outposts`."""
EARLY_STOP: Final = replace(
    shape_of(3),
    faults=(Join("learner/3", at=1.0), KillDaemon(HOME, 1.0, 0, at=2.0), Stop(at=3.02)),
    storms=(),
    steps=60,
    step_ms=100.0,
)
"""A stop is requested of a daemon that is there and has not begun: a home that acts on it at once forgets which lives
there are, and replaces them, which no invariant forbids. It shows `heard_before_it_has_begun`."""
BEGUN: Final = replace(shape_of(3), faults=(KillDaemon(HOME, 1.0, 6, at=0.0),), storms=(), steps=4, step_ms=100.0)
"""The daemon of the home dies in the instant in which it has started its first process: it catches
`noted_after_the_start`."""


def outcome(seed: int, program: str) -> Outcome:
    """The outcome of a seed of a program, or of one with deaths."""
    return searches.run_deadly(seed) if program == DEATHS else run(seed, program)


def violation_of(broken: Break, seed: int, program: str) -> str | None:
    """What a seed objects to while the code is broken."""
    with pytest.MonkeyPatch.context() as patch:
        broken(patch)
        return outcome(seed, program).violation


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
