"""A naive simulator of whole graphs, to try out what `verify` proves. It shares no code with what it checks.

Every replica of a role is a host. Bodies emit on every port at every firing, but for what an adversary withholds.
Items are *under way* until they are delivered; the adversary chooses when. A firing is one step. Semantics, in words:

- Queue pair (edge, producer replica, consumer replica): a FIFO, here two numbers. Credit is what is missing.
- Latest pair: a mailbox, here two bits. What waits is taken whole.
- AllOf needs an item of every Queue pair of its ports and of any Latest pair of each; AnyOf an item of any pair of
  any port; Every nothing; Quorum an opening of any opener and votes: of every pair where rounds are `strict` (the
  opening may ask for that), else of `count_min` replicas, or all voters if they are fewer. A Quorum firing takes one
  opening. Every firing takes one item of each other Queue pair that has one, and all that is in mailboxes.
- A firing needs a credit of every Queue pair that leaves its node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random

from isthmus.runtime.graph.template import AllOf, AnyOf, Every, Node, Queue, Quorum, Template

Place = tuple[str, int]
"""A node, and the slot of its replica."""
TURNS_MAX = 1000
"""More than 50 firings of any node take, also where many producers share its consumer and deliveries are slow."""
TURNS_TO_STOP = 50
"""More than all capacities of a small graph together: who is still firing then has come round at least once."""


class Pair:
    """An edge between two replicas."""

    def __init__(self, is_queue: bool, capacity: int, initial: int, source: Place, target: Place, port: str) -> None:
        self.is_queue = is_queue
        self.capacity = capacity
        self.waiting = initial
        self.under_way = 0
        self.source = source
        self.target = target
        self.port = port
        self.is_withheld = False
        self.is_slow = False

    def has_credit(self) -> bool:
        return not self.is_queue or self.waiting + self.under_way < self.capacity

    def emit(self) -> None:
        if not self.is_withheld:
            self.under_way = self.under_way + 1 if self.is_queue else 1

    def deliver(self) -> None:
        """One item arrives."""
        if self.under_way:
            self.under_way -= 1
            self.waiting = self.waiting + 1 if self.is_queue else 1


class World:
    """All hosts of a graph, for given numbers of replicas."""

    def __init__(self, graph: Template, counts: dict[str, int], *, is_strict: bool) -> None:
        self.is_strict = is_strict
        self.fired: Counter[Place] = Counter()
        self.nodes: dict[Place, Node] = {(n.name, slot): n for n in graph.nodes for slot in range(counts[n.role])}
        self.entering: dict[Place, list[Pair]] = {place: [] for place in self.nodes}
        self.leaving: dict[Place, list[Pair]] = {place: [] for place in self.nodes}
        self.pairs: list[Pair] = []
        for edge in graph.edges:
            capacity = edge.policy.capacity if isinstance(edge.policy, Queue) else 1
            initial = len(edge.policy.initial) if isinstance(edge.policy, Queue) else 0
            for (name, i), source in self.nodes.items():
                for (other, j), target in self.nodes.items():
                    if source is not edge.source.node or target is not edge.target.node:
                        continue
                    if edge.route is None and i != j:
                        continue
                    if edge.route is not None and edge.route.kind == "next" and j != (i + 1) % counts[target.role]:
                        continue
                    pair = Pair(
                        isinstance(edge.policy, Queue), capacity, initial, (name, i), (other, j), edge.target.name
                    )
                    self.pairs.append(pair)
                    self.leaving[name, i].append(pair)
                    self.entering[other, j].append(pair)

    def host(self, place: Place) -> tuple[str, int]:
        """The role and the slot of a place."""
        return self.nodes[place].role, place[1]

    def can_fire(self, place: Place) -> bool:
        if not all(pair.has_credit() for pair in self.leaving[place]):
            return False
        fires = self.nodes[place].fires
        entering = self.entering[place]
        if isinstance(fires, Every):
            return True
        if isinstance(fires, AnyOf):
            return any(pair.waiting for pair in entering if pair.port in fires.ports)
        if isinstance(fires, AllOf):
            for port in fires.ports:
                pairs = [pair for pair in entering if pair.port == port]
                if not (all if pairs[0].is_queue else any)(pair.waiting for pair in pairs):
                    return False
            return True
        votes = [pair for pair in entering if pair.port == fires.port]
        is_open = any(pair.waiting for pair in entering if pair.port == fires.opened_by)
        if self.is_strict:
            return is_open and all(pair.waiting for pair in votes)
        voters = {self.host(pair.source) for pair in votes}
        cast = {self.host(pair.source) for pair in votes if pair.waiting}
        return is_open and len(cast) >= min(fires.count_min, len(voters))

    def fire(self, place: Place) -> None:
        fires = self.nodes[place].fires
        opened_by = fires.opened_by if isinstance(fires, Quorum) else None
        taken = [pair for pair in self.entering[place] if pair.waiting and pair.port != opened_by]
        openings = [pair for pair in self.entering[place] if pair.waiting and pair.port == opened_by]
        if openings:
            taken.append(openings[0])
            self.entering[place].remove(openings[0])  # The next round is another opener's, if there is one.
            self.entering[place].append(openings[0])
        for pair in taken:
            pair.waiting -= 1
        for pair in self.leaving[place]:
            pair.emit()
        self.fired[place] += 1

    def wander(self, random: Random, steps: int, slow: float) -> None:
        """Any order of firings and deliveries; a share `slow` of the pairs delivers nothing meanwhile."""
        moving = [pair for pair in self.pairs if random.random() >= slow]
        places = list(self.nodes)
        for _ in range(steps):
            if moving and random.random() < 0.5:
                random.choice(moving).deliver()
            else:
                place = random.choice(places)
                if self.can_fire(place):
                    self.fire(place)

    def turn(self, places: list[Place], random: Random | None) -> bool:
        """Each of `places` fires once if it can, then items are delivered; the result is whether anything moved.

        Deliveries are prompt without `random`, else each may take some turns, and the order is any. Pairs that are
        slow, or begin elsewhere, deliver nothing.
        """
        moved = False
        if random is not None:
            random.shuffle(places)
        for place in places:
            if self.can_fire(place):
                self.fire(place)
                moved = True
        for place in places:
            for pair in self.leaving[place]:
                if pair.under_way and not pair.is_slow:
                    moved = True
                    if random is None or random.random() < 0.7:
                        pair.deliver()
        return moved

    def laggards(self, wanted: list[Place], firings: int, places: list[Place], random: Random) -> list[Place]:
        """Those of `wanted` that do not fire `firings` times more, whatever turns `places` have."""
        goals = {place: self.fired[place] + firings for place in wanted}
        for _ in range(TURNS_MAX):
            if all(self.fired[place] >= goal for place, goal in goals.items()) or not self.turn(places, random):
                break
        return [place for place, goal in goals.items() if self.fired[place] < goal]


def freeze(world: World, host: tuple[str, int], blocked: Collection[str], random: Random | None) -> list[Place]:
    """The places of `host` that go on when all other hosts freeze and the bodies `blocked` never return.

    Of what is under way to it, a random part still arrives; without `random`, nothing does.
    """
    own = [place for place in world.nodes if world.host(place) == host]
    for pair in world.pairs:
        if world.host(pair.target) == host != world.host(pair.source) and random is not None:
            for _ in range(random.randint(0, pair.under_way)):
                pair.deliver()
    return [place for place in own if place[0] not in blocked]


def stops(
    graph: Template, counts: dict[str, int], host: tuple[str, int] | None, blocked: Collection[str] = ()
) -> set[Place]:
    """The places that some schedule stops for good: on `host` with all other hosts frozen from the start, or anywhere.

    The adversary's other choices: with frozen hosts, keys name other replicas wherever there are any; and Queue edges
    into ports that a firing may leave alone are slow (all of them, or one, or one from a single replica), until nothing
    moves any more.
    """
    stopped: set[Place] = set()
    loose = [
        edge
        for edge in graph.edges
        if isinstance(edge.policy, Queue)
        and (not isinstance(edge.target.node.fires, AllOf) or edge.target.name not in edge.target.node.fires.ports)
    ]
    slots = range(max(counts.values()))
    for slow, slow_slots in [([], slots), (loose, slots), *(([edge], each) for edge in loose for each in (slots, [0]))]:
        world = World(graph, counts, is_strict=True)
        places = list(world.nodes)
        if host is not None:
            withhold_keys(world, graph)
            places = freeze(world, host, blocked, None)
        names = {(edge.source.node.name, edge.target.node.name, edge.target.name) for edge in slow}
        for is_slow in (True, False):
            for pair in world.pairs:
                is_named = (pair.source[0], pair.target[0], pair.port) in names and pair.source[1] in slow_slots
                pair.is_slow = is_slow and is_named
            for _ in range(TURNS_TO_STOP):
                if not world.turn(places, None):
                    break
        before = world.fired.copy()
        for _ in range(TURNS_TO_STOP):
            if not world.turn(places, None):
                break
        own = [place for place in world.nodes if host in (None, world.host(place))]
        stopped.update(place for place in own if world.fired[place] == before[place])
    return stopped


def withhold_keys(world: World, graph: Template) -> None:
    """Keys of routed items always name another replica, where there is one."""
    routed = {
        (edge.source.node.name, edge.target.node.name, edge.target.name)
        for edge in graph.edges
        if edge.route and edge.route.kind == "at"
    }
    others: Counter[tuple[Place, str, str]] = Counter()
    for pair in world.pairs:
        others[pair.source, pair.target[0], pair.port] += 1
    for pair in world.pairs:
        is_routed = (pair.source[0], pair.target[0], pair.port) in routed
        is_own = world.host(pair.source) == world.host(pair.target)
        pair.is_withheld = is_routed and is_own and others[pair.source, pair.target[0], pair.port] > 1


def fires_at_start(graph: Template, counts: dict[str, int], *, is_strict: bool = False) -> set[Place]:
    """The places that fire at least once: in eager turns, or in turns that prefer who has not fired yet."""
    fired: set[Place] = set()
    for is_patient in (False, True):
        world = World(graph, counts, is_strict=is_strict)
        for _ in range(4 * len(world.nodes) + 4):
            for pair in world.pairs:
                while pair.under_way:
                    pair.deliver()
            ready = [place for place in world.nodes if world.can_fire(place)]
            new = [place for place in ready if not world.fired[place]]
            for place in (new or ready) if is_patient else ready:
                if world.can_fire(place):
                    world.fire(place)
            if not ready or len(world.fired) == len(world.nodes):
                break
        fired.update(world.fired)
    return fired
