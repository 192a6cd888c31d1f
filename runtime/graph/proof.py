"""Wait analysis of a graph: which nodes can start, which Queues can fill up for good, which hosts can delay others.

It decides from the graph alone, in a few passes over it, and raises nothing; `verify` turns what it finds into faults.

Theory of operation, on the *net* of *instances* and *conditions* that `instances` makes of a graph. If the instances of
a set stop for good, so does exactly the least set that holds them and every instance with a condition whose waits are
all for stopped instances: such an instance has finitely many items, and gets no more; and an instance with no such
condition always gets what it waits for. Take as the first set the instances of all other hosts, those of the own host
that may block, and those that would not fire at the start without either. This is the proof: a node outside the
resulting set runs free. (Where no condition has two waits, the set is the closure of "consumers of Queue outputs and
producers of required inputs". Where one has, alternatives could wait for each other, and only an item from elsewhere
would unblock them: hence the start.)

Two further findings make the second half of that true. Every instance can fire once from the start; and no producer
waits for credit, directly or not, for a consumer that can fire without returning that credit (`overflows`). On any
cycle of waits there is then always an item or a credit left, as in a marked graph, so no cycle of waits closes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

from isthmus.runtime.graph.instances import Condition, Instance, Net, Wait, most
from isthmus.runtime.graph.template import Edge, Graph, Latest, Queue, Quorum

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


def overflows(net: Net, given: Set[Instance] = frozenset()) -> dict[Edge, tuple[Wait, ...]]:
    """The Queue edges that may fill up for good once `given` have stopped, each with a cycle of waits, producer first.

    `given` must contain every instance that it stops. A firing returns a credit wherever an item is a condition of its
    own. Where it is not (a sampled port, one of several producers of AnyOf or of a round's openings), a consumer may
    fire while that item is under way, and consume what its producer will wait for: the Queue is full, and no instance
    on the cycle can ever fire again. (The rule is safe, not exact: where producers of one port limit each other it may
    not come to that.)
    """
    found: dict[Edge, tuple[Wait, ...]] = {}
    for edge in (edge for edge in net.graph.edges if isinstance(edge.policy, Queue)):
        producers = {instance for instance in net.conditions if instance.node == edge.source.node.name}
        consumers = [instance for instance in net.conditions if instance.node == edge.target.node.name]
        credit = next(wait for (wait, *_) in net.conditions[min(producers)] if wait.edge is edge and wait.is_for_credit)
        if credit.waiter in given or any(
            len(one) == 1 and _is_met(one, edge) for each in consumers for one in net.conditions[each]
        ):
            continue
        rest = {each: tuple(one for one in net.conditions[each] if not _is_met(one, edge)) for each in consumers}
        stopped = net.stopped(producers | given, rest)
        if credit.on in stopped:
            chains = net.chains(credit.on, stopped, rest)
            found[edge] = (credit, *next(chain for instance, chain in chains.items() if instance in producers))
    return found


def _is_met(condition: Condition, edge: Edge) -> bool:
    """Whether an item of `edge` meets the condition."""
    return any(wait.edge is edge and not wait.is_for_credit for wait in condition)


# -- the proof ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hold:
    """A node that can delay another one, as seen from there (`place`), and the sentences of the chain of waits.

    `is_elsewhere`: it is on another host (else it is on the same one, and may block); `is_near`: no other node of
    another host comes before it in the chain.
    """

    node: str
    place: str
    is_elsewhere: bool
    is_near: bool
    waits: tuple[str, ...]

    @property
    def chain(self) -> str:
        """The waits in one line, down to the cause of the last one."""
        return "; ".join(self.waits if self.is_elsewhere else (*self.waits, f"{self.node} is declared may_block"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one node; nearest holds first."""

    node: str
    holds: tuple[Hold, ...]

    @property
    def free_running(self) -> bool:
        """Whether the node never waits for another host, nor for a body of its own host that may block."""
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


def prove(graph: Graph, assumed: Set[Edge] = frozenset()) -> Proof:
    """The nodes that can delay each node, with every replica of a role as a host of its own.

    More replicas add waits for other hosts and end none, so the largest number of replicas decides for all. Waits on
    the edges of `assumed` count as over when instances are tried at the start.
    """
    net = Net(graph, most(graph))
    verdicts: dict[str, Verdict] = {}
    for role in graph.roles:
        host = {Instance(node.name, 0) for node in graph.nodes if node.role == role.name}
        seeds = {instance for instance in net.conditions if instance not in host or net.nodes[instance.node].may_block}
        stopped = net.stopped(seeds | stuck_at_start(net, assumed, seeds).keys())
        while full := overflows(net, stopped):
            stopped = net.stopped(stopped | {waits[0].waiter for waits in full.values()})
        for instance in sorted(host):
            verdicts[instance.node] = Verdict(instance.node, _holds(net, instance, host, stopped))
    return Proof(MappingProxyType({node.name: verdicts[node.name] for node in graph.nodes}))


def _holds(net: Net, start: Instance, host: set[Instance], stopped: set[Instance]) -> tuple[Hold, ...]:
    holds: dict[tuple[str, bool], Hold] = {}
    for instance, waits in net.chains(start, stopped).items():
        is_elsewhere = instance not in host
        if is_elsewhere or net.nodes[instance.node].may_block:
            is_near = all(wait.waiter in host for wait in waits)
            told = tuple(net.tell(wait, start) for wait in waits)
            hold = Hold(instance.node, net.place(instance, start), is_elsewhere, is_near, told)
            holds.setdefault((instance.node, is_elsewhere), hold)
    return tuple(holds.values())
