"""Islands of several machines that join: which machine has which rank, and when an island is whole.

Decides what a machine may say of its part, and that each rank has one machine. An island joins a run as a whole, once
all of its machines are linked; the runtime then has its processes live and end together, as those of a listed one.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, Self, final

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.settings import collecting
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import is_machine_name
from isthmus.runtime.system import addresses
from isthmus.runtime.system.processes import boot_id
from isthmus.runtime.system.refusals import remedy
from isthmus.runtime.wire.security_keys import is_loopback

SIZE_MAX: Final = 64
"""Machines of one island: as many as the names of its processes are tried with."""
HOST_LENGTH_MAX: Final = 255
VARIABLES: Final = (
    ("SLURM_NODEID", "SLURM_NNODES"),
    ("LWS_WORKER_INDEX", "LWS_GROUP_SIZE"),
    ("RANK", "WORLD_SIZE"),
)
"""Names of the variables with rank and size, by which schedulers tell the nodes of one job apart; the first pair that
is there counts."""
_RANK: Final = "Reading --rank"
_SIZE: Final = "Reading --size"


@final
@dataclass(frozen=True, slots=True)
class IslandPart:
    """A machine's part of an island of `size` machines, at whose address `host` the others reach it; `source` says
    where rank and size are from. `loopback` says whose loopback `host` is of, if it is one: '' off loopback."""

    island: str
    rank: int
    size: int
    host: str
    source: str = ""
    loopback: str = ""

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """The part that a machine announces; ValueError, LookupError or TypeError for what is none."""
        loopback = str(data.get("loopback", ""))[:HOST_LENGTH_MAX]
        part = cls(str(data["island"]), int(data["rank"]), int(data["size"]), str(data["host"]), loopback=loopback)
        if not is_machine_name(part.island) or not 0 <= part.rank < part.size <= SIZE_MAX:
            raise ValueError(f"rank {part.rank} of {part.size} of an island {part.island[:100]!r}")
        if not 0 < len(part.host) <= HOST_LENGTH_MAX or not part.host.isprintable():
            raise ValueError("the address of a part of an island")
        return part

    def as_data(self) -> dict[str, Any]:
        """The announcement."""
        return asdict(self)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} of the island {self.island}"


def part_of(
    island: str, rank: int | None, size: int | None, variables: Mapping[str, str], host: Callable[[], str]
) -> IslandPart:
    """The part that options name, or a scheduler's variables where they name neither rank nor size.

    ConfigError with all faults.
    """
    faults: list[Fault] = []
    with collecting(faults):
        cluster_file.checked_name(island, "Reading --island", "for example --island pod")
    source = ""
    if rank is None and size is None:
        found = next((pair for pair in VARIABLES if all(variables.get(name, "").isdecimal() for name in pair)), None)
        if found is None:
            names = ", ".join("/".join(pair) for pair in VARIABLES)
            do = "Give --rank R, from 0, and --size N; each machine of the island has another rank."
            faults.append(Fault(_RANK, f"the rank of this machine, or {names} in its environment", "none", do))
        else:
            rank, size = (int(variables[name]) for name in found)
            source = " and ".join(found)
    elif rank is None or size is None:
        faults.append(Fault(_RANK, "--rank and --size, or neither", "one of them", "Give both."))
    if size is not None and not 1 <= size <= SIZE_MAX:
        faults.append(Fault(_SIZE, f"from 1 to {SIZE_MAX}", str(size), "It is the number of machines of the island."))
    elif rank is not None and size is not None and not 0 <= rank < size:
        do = "Count the machines of the island from 0."
        faults.append(Fault(_RANK, f"from 0 to {size - 1}, in an island of {size}", str(rank), do))
    if faults or rank is None or size is None:
        raise ConfigError.of(faults)
    where = host()
    return IslandPart(
        island,
        rank,
        size,
        where,
        source,
        loopback_of_machine() if is_loopback(f"tcp://{addresses.text_of(where, 1)}") else "",
    )


def loopback_of_machine() -> str:
    """What tells the loopback of this machine, or of this network namespace of it, from any other."""
    with suppress(OSError):
        return hashlib.sha256(boot_id() + os.readlink("/proc/self/ns/net").encode()).hexdigest()[:32]
    return ""


def host_towards(endpoint: str) -> str:
    """The address of this machine on its way to an endpoint; ConfigError if there is no way."""
    host, port = addresses.host_and_port(endpoint)
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect(address)  # Sends nothing.
            return str(way.getsockname()[0])
    except OSError as error:
        do = "Look at the network of this machine."
        raise ConfigError(
            f"Looking for the way to {endpoint}", "a way", error.strerror or str(error), remedy(error, do)
        ) from None


@final
class IslandParts:
    """The parts that linked machines have announced, by machine; `is_up(name)`: whether one is linked now."""

    def __init__(self, is_up: Callable[[str], bool]) -> None:
        self._is_up = is_up
        self._parts: dict[str, IslandPart] = {}

    def record(self, name: str, part: IslandPart | None) -> None:
        """Note a machine's part, None for none; ConfigError if another machine that is linked contradicts it."""
        if part is None:
            self._parts.pop(name, None)
            return
        doing = f"Linking the machine {name!r}, {part}"
        for other, its in list(self._parts.items()):
            if other == name or its.island != part.island:
                continue
            if not self._is_up(other):
                if its.rank == part.rank or its.size != part.size:
                    del self._parts[other]  # This machine is in the place of one that is gone.
                continue
            if its.rank == part.rank:
                do = "Give each machine of an island another --rank, and each island another name."
                raise ConfigError(doing, "one machine of that rank", f"two, with {other!r}", do)
            if its.size != part.size:
                do = "Give all machines of an island the same --size."
                raise ConfigError(doing, f"an island of {its.size}, as {other!r} says", f"one of {part.size}", do)
            if part.loopback and its.loopback and its.loopback != part.loopback:
                do = "Let each machine of an island dial the home by an address of its network, and not by a tunnel."
                expected = f"an address at which {other!r}, of its island, reaches it"
                raise ConfigError(doing, expected, f"loopback, {part.host}, of another machine", do)
        self._parts[name] = part

    def host(self, name: str) -> str:
        """The address of a machine that is a part; empty for any other."""
        return self._parts[name].host if name in self._parts else ""

    def together(self, name: str) -> tuple[str, ...]:
        """The machines of a machine's island that were ever linked, by rank; itself, if it is no part."""
        part = self._parts.get(name)
        if part is None:
            return (name,)
        ranks = {its.rank: other for other, its in self._parts.items() if its.island == part.island}
        return tuple(ranks[rank] for rank in sorted(ranks))

    def whole(self, name: str) -> tuple[str, ...]:
        """The same, once all of them are linked; else empty."""
        names = self.together(name)
        part = self._parts.get(name)
        is_whole = part is not None and len(names) == part.size and all(map(self._is_up, names))
        return names if is_whole else ()
