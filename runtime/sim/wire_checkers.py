"""Checkers of the wire between two hosts: what their connections may carry, and the conservation of credit.

They keep accounts of their own about pairs of lives, from what each side sends and receives. `runtime_checkers` are
those that hold for every program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from isthmus.runtime.clock import Instant
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.graph.template import Graph
from isthmus.runtime.host.roster import Row
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.protocol.credit import CHARGE_MIN
from isthmus.runtime.sim.checkers import (
    BoundsChecker,
    Checker,
    RosterChecker,
    TapeFilesChecker,
    ViolationError,
    WaitsChecker,
)
from isthmus.runtime.sim.host import Life
from isthmus.runtime.sim.supervision_checkers import supervision_checkers
from isthmus.runtime.sim.universe import Universe

EXPECTED: Final = frozenset({"connection", "stranger", "crossed"})
"""Reasons for which a sound peer may be refused: a message of an older connection, or for another life, arrives late;
two have dialled each other. A sound peer sends nothing that is refused for another reason."""
WINDOWS_MAX: Final = 2
"""Windows on one connection: that of the peer, and those of the peers that it relays; in a small run two at once are
many."""
CROSSING_NS_MAX: Final = 12_000_000_000
"""The longest crossing in calm: a connection that died silently is given up after 5 s, the next one, if a relay lost
its first message, after 5 s more; then it is made within a second."""


class WireChecker(Checker):
    """No host refuses a message of a sound peer, nor accepts an older connection of a peer after a newer one."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Member, Member], int] = {}

    def connected(self, life: Life, peer: Member) -> None:
        """Check the number of the connection; a host that has forgotten its peer knows none."""
        number, key = life.channel.accepted(peer), (life.member, peer)
        newest = self._newest.pop(key, 0)
        if number is not None and number < newest:
            raise ViolationError(f"{life.member} takes connection {number} of {peer} after connection {newest}")
        if number is not None:
            self._newest[key] = number

    def asked(self, universe: Universe) -> None:
        """Check the refusals of every channel."""
        for life in universe.living():
            for name, count in sorted(life.channel.statistics().items()):
                if name.startswith("refused_") and count and name.removeprefix("refused_") not in EXPECTED:
                    raise ViolationError(f"{life.member} refused a message of a sound peer {count} times: {name}")

    def ended(self, universe: Universe) -> None:
        """Check a last time."""
        self.asked(universe)


@dataclass(slots=True)
class _Account:
    """The account of a Queue edge between two lives.

    `items` sent and not arrived, `grants` of credit not received, each with its instant; and the `credit` of the
    producer.
    """

    capacity: int
    credit: int
    items: deque[Instant] = field(default_factory=deque)
    grants: deque[Instant] = field(default_factory=deque)


class ForgottenChecker(Checker):
    """A forgotten life has no connection: a host keeps and accepts none with a life that its roster has dropped.

    That is, one that the roster names no more, or in a later life.
    """

    def __init__(self) -> None:
        self._known: dict[Member, set[Member]] = {}
        self._gone: dict[Member, set[Member]] = {}

    def told(self, life: Life, rows: Sequence[Row]) -> None:
        """Record the members in rosters, and those that are gone from them."""
        present = {Member(Replica.parse(row[0]), row[1]) for row in rows}
        if life.member not in present:
            return
        known = self._known.setdefault(life.member, set())
        self._gone.setdefault(life.member, set()).update(known - present)
        known |= present

    def connected(self, life: Life, peer: Member) -> None:
        """Check the peer of a connection that was made, or was lost, which makes a host forget."""
        if peer in self._gone.get(life.member, ()) and life.channel.accepted(peer):
            raise ViolationError(f"{life.member} has a connection with {peer}, which was said to be gone")

    def asked(self, universe: Universe) -> None:
        """Check the peers that hosts still know."""
        for life in universe.living():
            for member in self._gone.get(life.member, ()):
                if life.channel.accepted(member) is not None:
                    raise ViolationError(f"{life.member} still knows {member}, which was said to be gone")


class WindowChecker(Checker):
    """Credit never exceeds the window.

    No more messages are under way between two hosts than fit in the window of the receiver, at the minimum that each of
    them costs.
    """

    def __init__(self) -> None:
        self._universe: Universe | None = None

    def began(self, universe: Universe, member: Member) -> None:
        """Keep a reference to the universe."""
        self._universe = universe

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Count the messages under way. A few relayed peers have a window each."""
        universe = self._universe
        assert universe is not None
        most = -(-universe.window_bytes // CHARGE_MIN)
        for connection in universe.ether.connections:
            is_own = connection.purpose == "data" and life.address in connection.machines
            if is_own and max(connection.under_way()) > WINDOWS_MAX * most:
                told = f"{max(connection.under_way())} messages are under way between {connection.machines}"
                raise ViolationError(f"{told}; a window holds {most}")


Pair: TypeAlias = tuple[Member, Member, int]
"""(producer, consumer, edge)."""


class CreditChecker(Checker):
    """Credit of Queue edges is conserved.

    No host sends without credit, none receives more credit than was granted, and between two live hosts that know each
    other nothing is lost on the way: no item, and no credit.
    """

    def __init__(self) -> None:
        self._accounts: dict[Pair, _Account] = {}

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        """Count an item that is sent: it costs a credit."""
        if edge.kind == "queue":
            account = self._of((life.member, target, edge.index), edge)
            account.credit -= 1
            account.items.append(life.true_now())
            if account.credit < 0:
                raise ViolationError(f"{life.member} sends an item on {edge.name} to {target} without credit")

    def arrived(self, life: Life, source: Member, edge: EdgePlan, item: Any) -> None:
        if edge.kind == "queue":
            account = self._of((source, life.member, edge.index), edge)
            if not account.items:
                raise ViolationError(f"{life.member} gets an item on {edge.name} that {source} did not send")
            account.items.popleft()

    def granted(self, life: Life, source: Member, edge: int, count: int) -> None:
        """Count items that a consumer has taken."""
        account = self._of((source, life.member, edge), life.plan.edges[edge])
        account.grants.extend([life.true_now()] * count)
        if account.credit + len(account.items) + len(account.grants) > account.capacity:
            raise ViolationError(
                f"{life.member} grants {source} more credit than the {account.capacity} of edge {edge}"
            )

    def credited(self, life: Life, target: Member, edge: int, count: int) -> None:
        account = self._of((life.member, target, edge), life.plan.edges[edge])
        if count > len(account.grants):
            raise ViolationError(f"{life.member} gets {count} credits of {target}, which gave {len(account.grants)}")
        for _ in range(count):
            account.grants.popleft()
        account.credit += count

    def asked(self, universe: Universe) -> None:
        """In calm, check that nothing is lost on the way."""
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
    """The checkers that hold for every program, new for each universe."""
    free = {
        role.name: frozenset(node.name for node in graph.nodes if node.role == role.name and node.free_running)
        for role in graph.roles
    }
    made = [BoundsChecker(), RosterChecker(), ForgottenChecker(), WaitsChecker(free), TapeFilesChecker()]
    made += [WireChecker(), CreditChecker(), WindowChecker()]
    return [*made, *supervision_checkers()]
