"""The machines of a cluster: the roles that each takes, its islands, its failure domain and its network link.

Frozen data, with the few facts that follow from it. `placement` decides which replica goes where; the caller knows
whether a machine is up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from isthmus.runtime.graph.devices import Device
from isthmus.runtime.roles import LEARNER


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """A computer with a daemon.

    - `address`: where its daemon listens (tcp://HOST:PORT), or None for one that only dials out, as behind NAT. Hosts
      that others connect to, which are all but learners, can be placed only where there is an address.
    - `public_key`: the key that identifies it to the others; None where there are no keys.
    - `roles` that may be placed on it; empty is any. `islands`: how many learners it takes; None is any number.
    - `device` and `devices`: kind and number of the devices of each island; a `device` of None is unknown.
    - `island`: the name of an island that spans several machines, `together` the names of all of these, the one with
      the leading process first; None and empty where its islands are its own.
    - `memory_bytes`: its own, beside that of accelerators; None is unknown.
    - `domain`: machines of one failure domain fail together ('building-a'); without it, a machine fails alone.
      `bandwidth_bits`: of its network link in each direction, a second; None is unknown.
    """

    name: str
    address: str | None = None
    public_key: str | None = None
    roles: tuple[str, ...] = ()
    islands: int | None = None
    device: Device | None = None
    devices: int = 1
    domain: str | None = None
    bandwidth_bits: int | None = None
    memory_bytes: int | None = None
    island: str | None = None
    together: tuple[str, ...] = ()

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
    def learners_max(self) -> int | None:
        """The number of islands in all; None where a machine that may have learners gives no number."""
        counts = [machine.islands for machine in self.machines if machine.offers(LEARNER)]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None
