"""Which machine each replica of a graph runs on: a pure function of the template, the roster and the topology.

Nodes of one role go together, so that the nodes that feed a step and send its results are on the step's host.

- Learners take an island each: the fastest first, by published figures; among equals one of each machine before the
  second of any, so that the loss of a machine takes few learners with it.
- All others go to machines with an address, because other hosts connect to them. Replicas of a role are spread over
  failure domains; before that, machines without accelerators and without learners are preferred; among those left, the
  machine with the fewest hosts and then the widest link, so that the syncer is where the bandwidth is and the evaluator
  is elsewhere.
- Several shards of a role are spread by load and link: each goes where it loads the link least, and so on machines of
  their own, or beside learners. A learner loads a link by 1, a shard by the learners over the shards. A machine that
  does not tell its bandwidth counts as the narrowest that does. One that fails together with the shard before, which
  has its newest state at this one, counts as loaded twice. Between equals the rules before decide.
- Where machines have regions, and the graph syncers of regions, learner s is on a machine of region s modulo their
  number, and the syncer of a region on one of its own. Regions are numbered by their sorted names.
- The recorder is at home: the first machine of the cluster that takes other roles than learners. The author of the
  cluster file chooses it by the order of machines.

Ties go to the first name, so only home depends on an order. Either every replica gets a machine, or one error lists
everything that prevents it. Whether the machines are up, and what they run, is not known here: a `Machine` is frozen
data, of the roles that it takes, its islands, its failure domain and its network link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, final

from isthmus.programs.engine.cluster.devices import Device
from isthmus.programs.program_graph import EVALUATOR, REGION, SYNCER, regions_in
from isthmus.runtime.errors import Fault, PlacementError, nearest
from isthmus.runtime.graph.template import Template
from isthmus.runtime.ids import LEARNER, RECORDER, Replica, follower, leader

ROLES: Final = (LEARNER, SYNCER, REGION, EVALUATOR)
"""The roles that a machine may declare, whether a graph has such a role or not."""


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """A computer with a daemon."""

    name: str
    address: str | None = None
    """Where its daemon listens (tcp://HOST:PORT), or None for one that only dials out, as behind NAT. Hosts that others
    connect to, which are all but learners, can be placed only where there is an address."""
    public_key: str | None = None
    """The key that identifies it to the others; None where there are no keys."""
    roles: tuple[str, ...] = ()
    """Those that may be placed on it; empty is any."""
    islands: int | None = None
    """How many learners it takes; None is any number."""
    device: Device | None = None
    """The kind of the devices of each island; None is unknown."""
    devices: int = 1
    """Their number in each island."""
    domain: str | None = None
    """Machines of one failure domain fail together ('building-a'); without it, a machine fails alone."""
    bandwidth_bits: int | None = None
    """Of its network link in each direction, a second; None is unknown."""
    memory_bytes: int | None = None
    """Its own, beside that of accelerators; None is unknown."""
    island: str | None = None
    """The name of an island that spans several machines; None where its islands are its own."""
    together: tuple[str, ...] = ()
    """The names of all machines of that island, the one with the leading process first; else empty."""
    region: str | None = None
    """Where it is, for programs with syncers of regions; None where it is not said."""
    owner: str = ""
    """Whose it is, '' if nobody has to know."""
    weight_share_max: float | None = None
    """The largest share of a merge's weight that the learners of it, or of all machines of its owner, have together;
    None is what the program says."""

    def offers(self, role: str) -> bool:
        """Whether replicas of `role` may be placed here.

        The learner of an island of several machines is on the first of them.
        """
        is_led = role == LEARNER and self.together[:1] not in ((), (self.name,))
        return not is_led and (not self.roles or role in self.roles)

    @property
    def island_devices(self) -> int:
        """The number of devices of one island, on all of its machines."""
        return self.devices * max(1, len(self.together))

    @property
    def endpoint(self) -> str:
        """The address; ValueError for a machine that only dials out."""
        if self.address is None:
            raise ValueError(f"{self.name!r} has no address")
        return self.address

    @property
    def failure_domain(self) -> str:
        """The group of machines that fails together with this one; the machine alone where no domain is given."""
        return f"domain {self.domain}" if self.domain is not None else f"machine {self.name}"

    @property
    def has_accelerators(self) -> bool:
        """Whether the devices of its islands are known, and are not CPU cores."""
        return self.device is not None and not self.device.is_cpu

    @property
    def island_flops(self) -> float | None:
        """Published bfloat16 FLOP/s of one island; None if unknown."""
        return None if self.device is None or self.device.flops is None else self.device.flops * self.island_devices

    @property
    def island_memory_bytes(self) -> int | None:
        """Memory of one island's devices; None if unknown."""
        memory = None if self.device is None else self.device.memory_bytes
        return None if memory is None else memory * self.island_devices


@final
@dataclass(frozen=True, slots=True)
class Topology:
    """All machines, in the order in which they were named; ValueError if two share a name."""

    machines: tuple[Machine, ...]

    def __post_init__(self) -> None:
        if len(self.by_name()) != len(self.machines):
            raise ValueError(f"machines have names of their own: {[machine.name for machine in self.machines]}")

    def by_name(self) -> Mapping[str, Machine]:
        """The machines by their names."""
        return {machine.name: machine for machine in self.machines}

    @property
    def regions(self) -> tuple[str, ...]:
        """The names of all regions, by their numbers: sorted."""
        return tuple(sorted({machine.region for machine in self.machines if machine.region is not None}))

    def region_of(self, machine: Machine) -> int | None:
        """The number of a machine's region; None where it is not said."""
        return None if machine.region is None else self.regions.index(machine.region)

    @property
    def learners_max(self) -> int | None:
        """The number of islands in all; None where a machine that may have learners gives no number."""
        counts = [machine.islands for machine in self.machines if machine.offers(LEARNER)]
        numbers = [count for count in counts if count is not None]
        return sum(numbers) if len(numbers) == len(counts) else None


_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """The machine of each replica, by name, and the run's home."""

    machines: Mapping[Replica, str]
    home: str

    def of_role(self, role: str) -> tuple[str, ...]:
        """The machines of a role's replicas, in the order of their numbers."""
        return tuple(self.machines[replica] for replica in sorted(self.machines) if replica.role == role)

    @property
    def processes(self) -> tuple[int, ...]:
        """The number of processes in the island of each learner; none where every one is alone."""
        counts = Counter(leader(replica) for replica in self.machines if leader(replica).role == LEARNER)
        sizes = tuple(counts[replica] for replica in sorted(counts))
        return sizes if max(sizes, default=1) > 1 else ()

    def on(self, machine: str) -> tuple[Replica, ...]:
        """The replicas on a machine, by role and number."""
        return tuple(replica for replica in sorted(self.machines) if self.machines[replica] == machine)


def place(
    graph: Template,
    roster: Mapping[str, int],
    topology: Topology,
    *,
    memory_bytes: Mapping[str, int] = _NOTHING,
    kept: Mapping[Replica, str] = _NOTHING,
) -> Placement:
    """The placement of `roster` (replicas of each role of the graph; 0 where a role is missing) on the machines.

    `memory_bytes` is the minimum memory that a learner needs on its island, by role. `kept` are replicas that already
    have a machine: they stay, as long as it still exists and takes their role. Raises PlacementError with everything
    that prevents the placement.
    """
    regions = regions_in(graph) if topology.regions else 0
    builder = _Builder(topology, kept, _loads(graph, roster), regions)
    faults = list(_unknown_roles(graph, topology))
    if regions and (region_faults := list(_region_faults(topology, regions))):
        raise PlacementError.of([*faults, *region_faults])
    for role in graph.roles:
        count = roster.get(role.name, 0)
        replicas = [Replica(role.name, number) for number in range(count)]
        if role.name == LEARNER:
            faults += builder.add_learners(replicas, memory_bytes.get(LEARNER, 0))
        elif role.name != RECORDER:
            faults += builder.add(replicas)
    home = home_of(topology)
    if home is None:
        expected = "a machine with an address, which all hosts can dial"
        names = ", ".join(machine.name for machine in topology.machines) or "no machine"
        do = 'Give the machine that is to be the home of runs an address = "tcp://HOST:PORT".'
        faults.append(Fault("Placing the recorder", expected, f"{names}, without one", do))
    if faults or home is None:
        raise PlacementError.of(faults)
    builder.put([Replica(RECORDER, number) for number in range(roster.get(RECORDER, 0))], home)
    return Placement(MappingProxyType(dict(sorted(builder.machines.items()))), home.name)


def _loads(graph: Template, roster: Mapping[str, int]) -> dict[str, Fraction]:
    """How much a replica of a role loads the link of its machine, beside a learner, of those with several replicas."""
    learners, several = roster.get(LEARNER, 0), [role.name for role in graph.roles if roster.get(role.name, 0) > 1]
    shards = {name: Fraction(learners, roster[name]) for name in several if name not in (LEARNER, RECORDER, EVALUATOR)}
    return {**shards, LEARNER: Fraction(1)}


def home_of(topology: Topology) -> Machine | None:
    """The first machine with an address that takes other roles than learners, or else the first with an address."""
    reachable = [machine for machine in topology.machines if machine.address is not None]
    others = [machine for machine in reachable if not machine.roles or set(machine.roles) - {LEARNER}]
    return next(iter(others or reachable), None)


def _unknown_roles(graph: Template, topology: Topology) -> Iterator[Fault]:
    """Faults for roles of machines that neither this graph has nor any shipped one."""
    roles = [role.name for role in graph.roles if role.name != RECORDER]
    roles += [name for name in ROLES if name not in roles]
    for machine in topology.machines:
        for role in machine.roles:
            if role not in roles:
                doing = f"Reading the roles of {machine.name!r}"
                yield Fault(doing, f"of {', '.join(roles)}", repr(role), nearest(role, roles))


def _region_faults(topology: Topology, count: int) -> Iterator[Fault]:
    """Faults of machines whose regions do not go with a graph that has so many."""
    if len(topology.regions) != count:
        expected = f"machines of {count} region{'s' if count > 1 else ''}, as program.regions says"
        do = f"Set program.regions = {len(topology.regions)}, or change the `region` of machines."
        yield Fault("Placing the syncers of regions", expected, ", ".join(topology.regions), do)
    for machine in topology.machines:
        roles = [role for role in (LEARNER, REGION) if machine.offers(role)]
        if machine.region is None and roles:
            expected = "a `region`, because other machines have one"
            do = f'Write region = "{topology.regions[0]}", or give it only roles that need none, as ["syncer"].'
            yield Fault(f"Placing {' and '.join(roles)} on {machine.name!r}", expected, "none", do)


@final
class _Builder:
    """A placement under construction."""

    def __init__(
        self, topology: Topology, kept: Mapping[Replica, str], loads: Mapping[str, Fraction], regions: int = 0
    ) -> None:
        """With the replicas that stay where they are, how much those of a role load a link, and the number of regions
        that bind learners and syncers."""
        self._topology, self._loads, self._regions = topology, loads, regions
        self._loaded: dict[str, Fraction] = {machine.name: Fraction(0) for machine in topology.machines}
        told = [machine.bandwidth_bits for machine in topology.machines if machine.bandwidth_bits]
        self._narrowest = min(told, default=1)
        self.machines: dict[Replica, str] = {}
        self._hosts: Counter[str] = Counter()
        self._of_role: Counter[tuple[str, str]] = Counter()
        by_name = topology.by_name()
        for replica in sorted(kept):
            machine = by_name.get(kept[replica])
            if machine is not None and (machine.offers(replica.role) or replica.role == RECORDER):
                self.put([replica], machine)

    def put(self, replicas: list[Replica], machine: Machine) -> None:
        """Put replicas on a machine, except those that already have one."""
        for replica in replicas:
            if replica not in self.machines:
                self.machines[replica] = machine.name
                self._hosts[machine.name] += 1
                self._loaded[machine.name] += self._loads.get(replica.role, 0)
                self._of_role[replica.role, machine.failure_domain] += 1

    def add(self, replicas: list[Replica]) -> Iterator[Fault]:
        """Put replicas of a role that other hosts connect to where they rank best; yields a fault if none can go."""
        if not replicas:
            return
        role = replicas[0].role
        offers = [machine for machine in self._topology.machines if machine.offers(role)]
        reachable = [machine for machine in offers if machine.address is not None]
        doing = f"Placing role {role!r}"
        if not offers:
            yield self._nobody(role, doing)
        elif not reachable:
            expected = "a machine with an address: other hosts dial this role"
            do = f'Give one an address = "tcp://HOST:PORT", or add {role!r} to the roles of one that has it.'
            yield Fault(doing, expected, f"{', '.join(sorted(machine.name for machine in offers))} without one", do)
        else:
            learners = {name for replica, name in self.machines.items() if leader(replica).role == LEARNER}
            for replica in replicas:
                able = [machine for machine in reachable if self._may_have(machine, replica)]
                if not able:
                    where = self._topology.regions[replica.slot % self._regions]
                    do = f"Give one of them an address, and {role!r} among its roles."
                    yield Fault(f"Placing {replica}", f"a machine of region {where!r} with an address", "none", do)
                elif replica not in self.machines:
                    before = self._domain_before(replica)
                    ranked = [(self._load(each, role, before), self._rank(each, role, learners), each) for each in able]
                    self.put([replica], min(ranked, key=lambda of: of[:2])[2])

    def _may_have(self, machine: Machine, replica: Replica) -> bool:
        """Whether a machine is in the region of a replica, where that has one."""
        is_bound = self._regions and replica.role in (LEARNER, REGION)
        return not is_bound or self._topology.region_of(machine) == replica.slot % self._regions

    def _domain_before(self, replica: Replica) -> str | None:
        """The failure domain of the shard before one, of its region; None where there is none."""
        step = self._regions if replica.role == REGION else 1
        name = self.machines.get(Replica(replica.role, replica.slot - step)) if replica.slot >= step else None
        return None if name is None else self._topology.by_name()[name].failure_domain

    def _load(self, machine: Machine, role: str, before: str | None) -> Fraction:
        """How much a machine's link would be loaded with one more of several replicas of a role; else 0."""
        share = self._loads.get(role)
        if share is None:
            return Fraction(0)
        times = 2 if machine.failure_domain == before else 1
        return times * (self._loaded[machine.name] + share) / (machine.bandwidth_bits or self._narrowest)

    def _rank(self, machine: Machine, role: str, learners: set[str]) -> tuple[bool, bool, int, int, int, str]:
        """Rank of a machine for the next replica of a role; the smallest is taken."""
        together = self._of_role[role, machine.failure_domain]
        busy = self._hosts[machine.name]
        return (
            machine.has_accelerators,
            machine.name in learners,
            together,
            busy,
            -(machine.bandwidth_bits or 0),
            machine.name,
        )

    def add_learners(self, replicas: list[Replica], memory_bytes: int) -> Iterator[Fault]:
        """Put learners on islands with at least `memory_bytes`; yields faults if that is impossible."""
        if not replicas:
            return
        offers = [machine for machine in self._topology.machines if machine.offers(LEARNER)]
        if not offers:
            yield self._nobody(LEARNER, f"Placing {_learners(len(replicas))}")
            return
        small = [machine for machine in offers if not _holds(machine, memory_bytes)]
        waiting = [replica for replica in replicas if replica not in self.machines]
        free = self._free(offers, small, len(waiting))
        if len(free) < len(waiting):
            yield from _too_few(len(replicas), offers, small, memory_bytes)
            return
        machines = self._topology.by_name()
        for replica in waiting:
            machine = next((each for each in free if self._may_have(each, replica)), None)
            if machine is None:
                where = self._topology.regions[replica.slot % self._regions]
                do = "Lower run.learners, or raise `islands` there: learners take turns between regions."
                yield Fault(f"Placing {replica}", f"a free island in region {where!r}", "none", do)
                return
            free.remove(machine)
            self.put([replica], machine)
            for number, name in enumerate(machine.together[1:], 1):
                self.put([follower(replica, number)], machines[name])

    def _free(self, offers: list[Machine], small: list[Machine], count_max: int) -> list[Machine]:
        """The machine of each free island, the best first, with up to `count_max` of each machine."""
        occupied = Counter(name for replica, name in self.machines.items() if replica.role == LEARNER)
        ranked = []
        for machine in offers:
            if machine not in small:
                used = occupied[machine.name]
                end = used + count_max if machine.islands is None else min(machine.islands, used + count_max)
                speed = -(machine.island_flops or 0.0)
                ranked += [(speed, index, machine.name, machine) for index in range(used, end)]
        return [machine for *_, machine in sorted(ranked, key=lambda island: island[:3])]

    def _nobody(self, role: str, doing: str) -> Fault:
        """The fault for a role that no machine takes."""
        offered = "; ".join(f"{machine.name}: {', '.join(machine.roles)}" for machine in self._topology.machines)
        do = f"Add {role!r} to the roles of a machine, or leave `roles` out there: then it takes every role."
        return Fault(doing, f"a machine that takes {role!r}", offered or "no machine", do)


def _holds(machine: Machine, memory_bytes: int) -> bool:
    """Whether an island there is large enough, as far as is known."""
    return machine.island_memory_bytes is None or machine.island_memory_bytes >= memory_bytes


def _too_few(count: int, offers: list[Machine], small: list[Machine], memory_bytes: int) -> Iterator[Fault]:
    """Faults for learners without an island: how many islands there are, and which of them are too small."""
    islands = sum(machine.islands or 0 for machine in offers if machine not in small)
    parts = [f"{machine.name} {machine.islands}" for machine in offers if machine not in small]
    actual = f"{islands} ({', '.join(parts)})" if parts else "none that is large enough"
    yield Fault(f"Placing {_learners(count)}", "an island for each", actual, "Lower run.learners, or raise `islands`.")
    for machine in small:
        device = machine.device
        kind = "" if device is None else f" ({machine.island_devices} x {device.kind})"
        yield Fault(
            f"Placing a learner on {machine.name!r}",
            f"{_size(memory_bytes)} on an island, for parameters, gradient and optimizer state alone",
            f"{_size(machine.island_memory_bytes or 0)}{kind}",
            "Give its islands more `devices`, make the model smaller, or leave learners to other machines.",
        )


def _learners(count: int) -> str:
    return "1 learner" if count == 1 else f"{count} learners"


def _size(count: int) -> str:
    return f"{count / 1e9:.4g} GB" if count >= 1e9 else f"{count / 1e6:.4g} MB"
