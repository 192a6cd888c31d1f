"""Checkers of what lies between two hosts: what their connections may carry, and what becomes of credit.

They keep books of their own about pairs of lives, from what each side hands over and gets. `runtime_checkers` are those
that hold for every program.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from isthmus.runtime.clock import Instant
from isthmus.runtime.graph import Graph
from isthmus.runtime.ids import Member
from isthmus.runtime.lowering import EdgePlan
from isthmus.runtime.sim.checkers import BoundsChecker, Checker, RosterChecker, ViolationError, WaitsChecker
from isthmus.runtime.sim.supervision_checkers import supervision_checkers

if TYPE_CHECKING:
    from isthmus.runtime.sim.life import Life
    from isthmus.runtime.sim.universe import Universe

EXPECTED: Final = frozenset({"connection", "stranger", "crossed"})
"""Reasons for which a sound peer may be refused: an older connection, or one for another life, comes late; two have
dialled each other. Whatever else a host refuses, a sound one does not send."""
CROSSING_NS_MAX: Final = 12_000_000_000
"""In calm: a connection that died without a word is given up after 5 s, the next one, if a relay lost its first
message, after 5 s more; then it is made within a second."""


class WireChecker(Checker):
    """No host refuses what a sound peer has sent, nor takes an older connection of a peer for a newer one."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Member, Member], int] = {}

    def connected(self, life: Life, peer: Member) -> None:
        """Look at the number of the connection; a host that has forgotten its peer knows none."""
        number, key = life.channel.accepted(peer), (life.member, peer)
        newest = self._newest.pop(key, 0)
        if number is not None and number < newest:
            raise ViolationError(f"{life.member} takes connection {number} of {peer} after connection {newest}")
        if number is not None:
            self._newest[key] = number

    def asked(self, universe: Universe) -> None:
        """Look at what every channel has refused."""
        for life in universe.living():
            for name, count in sorted(life.channel.statistics().items()):
                if name.startswith("refused_") and count and name.removeprefix("refused_") not in EXPECTED:
                    raise ViolationError(f"{life.member} refused a message of a sound peer {count} times: {name}")

    def ended(self, universe: Universe) -> None:
        """Once more."""
        self.asked(universe)


@dataclass(slots=True)
class _Account:
    """Of a Queue edge between two lives: items sent and not arrived, and credit granted and not heard of, each with
    since when; and the credit that the producer has."""

    capacity: int
    credit: int
    items: deque[Instant] = field(default_factory=deque)
    grants: deque[Instant] = field(default_factory=deque)


Pair: TypeAlias = tuple[Member, Member, int]
"""(producer, consumer, edge)."""


class CreditChecker(Checker):
    """On a Queue edge nobody sends without credit, nobody hears of more credit than was given, and between two that
    live and know each other nothing stays on the way: no item, and no credit."""

    def __init__(self) -> None:
        self._accounts: dict[Pair, _Account] = {}

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """An item leaves: it costs a credit."""
        if edge.kind == "queue":
            account = self._of((life.member, target, edge.index), edge)
            account.credit -= 1
            account.items.append(life.true_now())
            if account.credit < 0:
                raise ViolationError(f"{life.member} sends an item on {edge.name} to {target} without credit")

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        """An item is there."""
        if edge.kind == "queue":
            account = self._of((source, life.member, edge.index), edge)
            if not account.items:
                raise ViolationError(f"{life.member} gets an item on {edge.name} that {source} did not send")
            account.items.popleft()

    def granted(self, life: Life, source: Member, edge: int, count: int) -> None:
        """A consumer has taken items."""
        account = self._of((source, life.member, edge), life.plan.edges[edge])
        account.grants.extend([life.true_now()] * count)
        if account.credit + len(account.items) + len(account.grants) > account.capacity:
            raise ViolationError(
                f"{life.member} grants {source} more credit than the {account.capacity} of edge {edge}"
            )

    def credited(self, life: Life, target: Member, edge: int, count: int) -> None:
        """A producer hears of it."""
        account = self._of((life.member, target, edge), life.plan.edges[edge])
        if count > len(account.grants):
            raise ViolationError(f"{life.member} gets {count} credits of {target}, which gave {len(account.grants)}")
        for _ in range(count):
            account.grants.popleft()
        account.credit += count

    def asked(self, universe: Universe) -> None:
        """In calm, see that nothing is lost on the way."""
        if universe.calm_ns <= CROSSING_NS_MAX:
            return
        lives = {life.member: life for life in universe.living()}
        now = universe.clock.now()
        for (producer, consumer, edge), account in self._accounts.items():
            if not self._are_met(lives.get(producer), lives.get(consumer)):
                continue
            for what, since in (("an item", account.items), ("a credit", account.grants)):
                if since and now - max(since[0], universe.injector.calm_since) > CROSSING_NS_MAX:
                    took = f"{(now - since[0]) / 1e9:.1f} s"
                    raise ViolationError(f"{what} of edge {edge} is lost between {producer} and {consumer}: {took}")

    def _of(self, pair: Pair, edge: EdgePlan) -> _Account:
        return self._accounts.setdefault(pair, _Account(edge.capacity, edge.capacity - len(edge.initial)))

    def _are_met(self, producer: Life | None, consumer: Life | None) -> bool:
        if producer is None or consumer is None:
            return False
        knows = producer.meetings.live.get(consumer.member.replica) == consumer.member
        return knows and consumer.meetings.live.get(producer.member.replica) == producer.member


def runtime_checkers(graph: Graph) -> list[Checker]:
    """Those that hold for every program, new for each universe."""
    free = {
        role.name: frozenset(node.name for node in graph.nodes if node.role == role.name and node.free_running)
        for role in graph.roles
    }
    made = [BoundsChecker(), RosterChecker(), WaitsChecker(free), WireChecker(), CreditChecker()]
    return [*made, *supervision_checkers()]
