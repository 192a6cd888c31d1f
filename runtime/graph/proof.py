"""The instances of a graph: every node in every replica, and what each waits for before it fires.

It lists the waits, and computes which instances a set of stopped ones stops; `proof` draws the conclusions.

Theory of operation. The graph is expanded into a *net*: every node once in each replica of its role (an *instance*),
for given numbers of replicas. An instance may fire when all its *conditions* hold. A condition is a tuple of waits, of
which one has to end:

- credit, from the consumer of each pair of each Queue output: a condition of its own;
- AllOf: an item of each pair of a Queue port, each a condition of its own; of any pair of a Latest port, one condition;
- AnyOf: an item of any pair of any named port, one condition;
- Quorum: an item of any pair of `opened_by`, one condition; a vote of each pair of `port`, each a condition of its own,
  because the item that opens a round may ask for every vote;
- Every: none but credit.

Wait analysis of a graph: which nodes can start, which Queues can fill up for good, which hosts can delay others.

It decides from the graph alone, in a few passes over it, and raises nothing; `verify` turns what it finds into faults.

Theory of operation, on the *net* of *instances* and *conditions* that `instances` makes of a graph. If the instances of
a set stop for good, so does exactly the least set that holds them and every instance with a condition whose waits are
all for stopped instances: such an instance has finitely many items, and gets no more; and an instance with no such
condition always gets what it waits for. Take as the first set the instances of all other hosts, those of the own host
that may wait, and those that would not fire at the start without either. This is the proof: a node outside the
resulting set runs free. (Where no condition has two waits, the set is the closure of "consumers of Queue outputs and
producers of required inputs". Where one has, alternatives could wait for each other, and only an item from elsewhere
would unblock them: hence the start.)

Two further findings make the second half of that true. Every instance can fire once from the start; and no producer
waits for credit, directly or not, for a consumer that can fire without returning that credit (`overflows`). On any
cycle of waits there is then always an item or a credit left, as in a marked graph, so no cycle of waits closes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from isthmus.runtime.graph.template import (
    AllOf,
    AnyOf,
    Edge,
    Latest,
    Node,
    Queue,
    Quorum,
    Template,
    groups_of,
)

REPLICAS_MAX: Final = 3
"""Replicas of a role in a net. Replicas of one role are alike: one, its neighbour, and one that is neither cover every
kind of pair."""


class Instance(NamedTuple):
    """A node in one replica of its role."""

    node: str
    slot: int


class Wait(NamedTuple):
    """`waiter` waits for an action of `on`: taking an item of `edge` (which returns credit), or sending one on it.

    `is_certain`: what `on` sends reaches `waiter`. A producer that routes by key may never have an item for it.
    """

    waiter: Instance
    on: Instance
    edge: Edge
    is_for_credit: bool
    is_certain: bool = True


Condition: TypeAlias = tuple[Wait, ...]


class Net:
    """A graph at one number of replicas per role; `conditions` of every instance, in the order of nodes and edges."""

    def __init__(self, graph: Template, counts: Mapping[str, int]) -> None:
        self.graph = graph
        self.counts = counts
        self.nodes = {node.name: node for node in graph.nodes}
        self.conditions: dict[Instance, tuple[Condition, ...]] = {}
        leaving: dict[Instance, list[Wait]] = {}
        entering: dict[tuple[Instance, str], list[Wait]] = {}
        for edge in graph.edges:
            for source, target in self._pairs(edge):
                if isinstance(edge.policy, Queue):
                    leaving.setdefault(source, []).append(Wait(source, target, edge, True))
                is_certain = edge.route is None or not _is_addressed(edge, counts[edge.target.node.role])
                entering.setdefault((target, edge.target.name), []).append(
                    Wait(target, source, edge, False, is_certain)
                )
        for node in graph.nodes:
            for slot in range(counts[node.role]):
                instance = Instance(node.name, slot)
                ports = {port: entering.get((instance, port), []) for port in dict.fromkeys(node.required)}
                credit = [(wait,) for wait in leaving.get(instance, [])]
                self.conditions[instance] = (*credit, *(item for item in _items(node, ports) if item))

    def _pairs(self, edge: Edge) -> Iterator[tuple[Instance, Instance]]:
        source, target = edge.source.node, edge.target.node
        for slot in range(self.counts[source.role]):
            targets: Sequence[int]
            if edge.is_local:
                targets = range(slot, slot + 1)
            elif edge.route is not None and edge.route.kind == "next" and source.role == target.role:
                following = (slot + 1) % self.counts[target.role]
                targets = range(following, following + 1)
            else:
                targets = range(self.counts[target.role])
                if groups := groups_of(self.graph, edge):  # `verify` reports a group of unknown number.
                    sender, receiver = edge.route.divisors if edge.route is not None else (1, 1)
                    own = slot // sender % groups
                    targets = [other for other in targets if other // receiver % groups == own]
            for other in targets:
                yield Instance(source.name, slot), Instance(target.name, other)

    def stopped(
        self, seeds: set[Instance], instead: Mapping[Instance, tuple[Condition, ...]] = MappingProxyType({})
    ) -> set[Instance]:
        """The least superset of `seeds` that holds every instance it stops; `instead` replaces conditions."""
        result = set(seeds)
        grows = True
        while grows:
            grows = False
            for instance, conditions in self.conditions.items():
                if instance not in result:
                    conditions = instead.get(instance, conditions)
                    if any(is_stopped(condition, result) for condition in conditions):
                        result.add(instance)
                        grows = True
        return result

    def chains(
        self,
        start: Instance,
        stopped: set[Instance],
        instead: Mapping[Instance, tuple[Condition, ...]] = MappingProxyType({}),
    ) -> dict[Instance, tuple[Wait, ...]]:
        """Instances that `start` waits for once `stopped` have stopped, with a shortest chain each, nearest first."""
        chains: dict[Instance, tuple[Wait, ...]] = {start: ()}
        ahead = deque([start])
        while ahead:
            instance = ahead.popleft()
            for condition in instead.get(instance, self.conditions[instance]):
                if is_stopped(condition, stopped):
                    for wait in condition:
                        if wait.on in stopped and wait.on not in chains:
                            chains[wait.on] = (*chains[instance], wait)
                            ahead.append(wait.on)
        return chains

    def place(self, instance: Instance, viewer: Instance) -> str:
        """The name of `instance` as seen from the host of `viewer`: with its role where it is on another host."""
        role = self.nodes[instance.node].role
        if role != self.nodes[viewer.node].role:
            return f"{instance.node} ({role})"
        return instance.node if instance.slot == viewer.slot else f"{instance.node} (another {role})"

    def tell(self, wait: Wait, viewer: Instance) -> str:
        """`wait` as a sentence without its full stop."""
        waiter, on = self.place(wait.waiter, viewer), self.place(wait.on, viewer)
        condition = next(condition for condition in self.conditions[wait.waiter] if wait in condition)
        what = "credit" if wait.is_for_credit else "an item"
        if any(other.edge is not wait.edge for other in condition):
            what = "any item, such as one"
        return f"{waiter} waits for {what} from {on} on {describe(wait.edge)}"


def _items(node: Node, ports: Mapping[str, list[Wait]]) -> list[Condition]:
    if isinstance(node.fires, AnyOf):
        return [tuple(wait for waits in ports.values() for wait in waits)]
    if isinstance(node.fires, Quorum):
        votes = [(wait,) for wait in ports[node.fires.port]] if node.fires.port != node.fires.opened_by else []
        return [tuple(ports[node.fires.opened_by]), *votes]
    conditions: list[Condition] = []
    if isinstance(node.fires, AllOf):
        for waits in ports.values():
            conditions += [(wait,) for wait in waits if isinstance(wait.edge.policy, Queue)]
            conditions.append(tuple(wait for wait in waits if isinstance(wait.edge.policy, Latest)))
    return conditions


def is_stopped(condition: Condition, stopped: set[Instance]) -> bool:
    """Whether no certain wait of a condition can still end, and at least one of its waits is for something stopped."""
    return all(wait.on in stopped for wait in condition if wait.is_certain) and any(
        wait.on in stopped for wait in condition
    )


def fewest(graph: Template) -> dict[str, int]:
    """The smallest number of replicas of each role, at least 1 and at most REPLICAS_MAX."""
    return {role.name: _within(role.replicas_min) for role in graph.roles}


def most(graph: Template) -> dict[str, int]:
    """The largest number of replicas of each role, at most REPLICAS_MAX."""
    return {role.name: _within(role.replicas_max) for role in graph.roles}


def _within(count: int) -> int:
    return min(max(1, count), REPLICAS_MAX) if isinstance(count, int) else 1


def describe(edge: Edge) -> str:
    """An edge as text, with its policy and where its items go."""
    route = "" if edge.route is None else f", {describe_route(edge)}"
    return f"{edge} [{describe_policy(edge)}{route}]"


def _is_addressed(edge: Edge, count: int) -> bool:
    """Whether an item may not be for a replica: it names one of several, or those that it is for."""
    return edge.route is not None and (edge.route.kind == "some" or (edge.route.kind == "at" and count > 1))


def describe_policy(edge: Edge) -> str:
    """'Queue(2)', 'Queue(2, 1 initial)', 'Latest' or 'Latest(fragment)'."""
    policy = edge.policy
    if isinstance(policy, Latest):
        return "Latest" if policy.key is None else f"Latest({policy.key})"
    initial = f", {len(policy.initial)} initial" if policy.initial and isinstance(policy.initial, tuple) else ""
    return f"Queue({policy.capacity}{initial})"


def describe_route(edge: Edge) -> str:
    """Destination of an edge's items: 'same learner', 'every learner', 'next learner', 'learner at fragment', 'each
    learner of the group' or 'learners that have the fragment'."""
    role = edge.target.node.role
    if edge.route is None:
        return f"same {role}"
    return {
        "all": f"every {role}",
        "next": f"next {role}",
        "group": f"each {role} of the group",
        "some": f"{role}s that have the {edge.route.key}",
    }.get(edge.route.kind, f"{role} at {edge.route.key}")


# -- the start ---------------------------------------------------------------------------------------------------------


def stuck_at_start(
    net: Net, assumed: Set[Edge] = frozenset(), frozen: Set[Instance] | None = None
) -> dict[Instance, tuple[Condition, ...]]:
    """The instances that never fire, each with its conditions that are never met, if every firing emits on every port.

    An edge has exactly one producer and one consumer per pair, so an item for an instance stays until it fires: the
    order of firings does not matter, and trying one firing of each instance is enough. Rounds are opened for all
    replicas, without grace, and need `count_min` votes or those of all voters, if they are fewer. Items that are routed
    by key are taken to reach every replica. Waits on the edges of `assumed` count as over.

    `frozen` instances never fire, and are not in the result; with them, rounds need every vote, because the item that
    opens a round may ask for that.
    """
    fired: set[Instance] = set()
    unmet: dict[Instance, tuple[Condition, ...]] = {}
    waiting = [instance for instance in net.conditions if instance not in (frozen or ())]
    grows = True
    while grows:
        grows = False
        for instance in waiting:
            if instance not in fired:
                unmet[instance] = _unmet(net, instance, fired, assumed, is_strict=frozen is not None)
                if not unmet[instance]:
                    fired.add(instance)
                    grows = True
    return {instance: conditions for instance, conditions in unmet.items() if conditions}


def _is_over(wait: Wait, fired: set[Instance], assumed: Set[Edge]) -> bool:
    """Whether a wait ends at the start, or by the first firing of the instance that it is for."""
    if wait.on in fired or wait.edge in assumed:
        return True
    policy = wait.edge.policy
    if isinstance(policy, Latest):
        return False
    return len(policy.initial) < policy.capacity if wait.is_for_credit else bool(policy.initial)


def _unmet(
    net: Net, instance: Instance, fired: set[Instance], assumed: Set[Edge], *, is_strict: bool
) -> tuple[Condition, ...]:
    conditions = net.conditions[instance]
    unmet = tuple(each for each in conditions if not any(_is_over(wait, fired, assumed) for wait in each))
    fires = net.nodes[instance.node].fires
    if is_strict or not isinstance(fires, Quorum):
        return unmet
    votes = [each for each in conditions if not each[0].is_for_credit and each[0].edge.target.name == fires.port]
    missing = [vote for vote in votes if vote in unmet]
    if len(votes) - len(missing) >= min(fires.count_min, len(votes)):
        return tuple(condition for condition in unmet if condition not in missing)
    return unmet


def overflows(net: Net, halted: Set[Instance] = frozenset()) -> dict[Edge, tuple[Wait, ...]]:
    """The Queue edges that may fill up for good once `halted` have stopped, each with a cycle of waits, producer first.

    `halted` must contain every instance that it stops. A firing returns a credit wherever an item is a condition of its
    own. Where it is not (a sampled port, one of several producers of AnyOf or of a round's openings), a consumer may
    fire while that item is under way, and consume what its producer will wait for: the Queue is full, and no instance
    on the cycle can ever fire again. (The rule is safe, not exact: where producers of one port limit each other it may
    not come to that.)
    """
    cycles: dict[Edge, tuple[Wait, ...]] = {}
    for edge in (edge for edge in net.graph.edges if isinstance(edge.policy, Queue)):
        producers = {instance for instance in net.conditions if instance.node == edge.source.node.name}
        consumers = [instance for instance in net.conditions if instance.node == edge.target.node.name]
        credit = next(wait for (wait, *_) in net.conditions[min(producers)] if wait.edge is edge and wait.is_for_credit)
        if credit.waiter in halted or any(
            len(one) == 1 and _is_met(one, edge) for each in consumers for one in net.conditions[each]
        ):
            continue
        rest = {each: tuple(one for one in net.conditions[each] if not _is_met(one, edge)) for each in consumers}
        stopped = net.stopped(producers | halted, rest)
        if credit.on in stopped:
            chains = net.chains(credit.on, stopped, rest)
            cycles[edge] = (credit, *next(chain for instance, chain in chains.items() if instance in producers))
    return cycles


def _is_met(condition: Condition, edge: Edge) -> bool:
    """Whether an item of `edge` meets the condition."""
    return any(wait.edge is edge and not wait.is_for_credit for wait in condition)


# -- the proof ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PossibleDelay:
    """A node that can delay another one, as seen from there (`place`), and the sentences of the chain of waits.

    `is_elsewhere`: it is on another host (else it is on the same one, and its body may wait); `is_near`: no other node
    of another host comes before it in the chain.
    """

    node: str
    place: str
    is_elsewhere: bool
    is_near: bool
    waits: tuple[str, ...]

    @property
    def chain(self) -> str:
        """The waits in one line, down to the cause of the last one."""
        return "; ".join(self.waits if self.is_elsewhere else (*self.waits, f"{self.node} is declared body_may_wait"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one node; nearest holds first."""

    node: str
    holds: tuple[PossibleDelay, ...]

    @property
    def free_running(self) -> bool:
        """Whether the node never waits for another host, nor for a body of its own host that may wait."""
        return not self.holds

    @property
    def blocked_by(self) -> tuple[str, ...]:
        """The nodes of other hosts that can delay it, sorted."""
        return tuple(sorted(hold.node for hold in self.holds if hold.is_elsewhere))

    def chain(self, node: str) -> str:
        """The chain of waits by which `node` can delay it; KeyError if it cannot."""
        for hold in self.holds:
            if hold.node == node:
                return hold.chain
        raise KeyError(node)


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdict on every node of a graph, by name."""

    verdicts: Mapping[str, Verdict]

    def __getitem__(self, node: str) -> Verdict:
        return self.verdicts[node]


def prove(graph: Template, assumed: Set[Edge] = frozenset()) -> Proof:
    """The nodes that can delay each node, with every replica of a role as a host of its own.

    More replicas add waits for other hosts and end none, so the largest number of replicas decides for all. Waits on
    the edges of `assumed` count as over when instances are tried at the start.
    """
    net = Net(graph, most(graph))
    verdicts: dict[str, Verdict] = {}
    for role in graph.roles:
        host = {Instance(node.name, 0) for node in graph.nodes if node.role == role.name}
        seeds = {
            instance for instance in net.conditions if instance not in host or net.nodes[instance.node].body_may_wait
        }
        stopped = net.stopped(seeds | stuck_at_start(net, assumed, seeds).keys())
        while full := overflows(net, stopped):
            stopped = net.stopped(stopped | {waits[0].waiter for waits in full.values()})
        for instance in sorted(host):
            verdicts[instance.node] = Verdict(instance.node, _holds(net, instance, host, stopped))
    return Proof(MappingProxyType({node.name: verdicts[node.name] for node in graph.nodes}))


def _holds(net: Net, start: Instance, host: set[Instance], stopped: set[Instance]) -> tuple[PossibleDelay, ...]:
    holds: dict[tuple[str, bool], PossibleDelay] = {}
    for instance, waits in net.chains(start, stopped).items():
        is_elsewhere = instance not in host
        if is_elsewhere or net.nodes[instance.node].body_may_wait:
            is_near = all(wait.waiter in host for wait in waits)
            sentences = tuple(net.tell(wait, start) for wait in waits)
            hold = PossibleDelay(instance.node, net.place(instance, start), is_elsewhere, is_near, sentences)
            holds.setdefault((instance.node, is_elsewhere), hold)
    return tuple(holds.values())
