"""Identifiers that outlive a process (replicas of roles, their incarnations), role names, and the base of records.

Graphs, messages and files name the same things by them. What a replica does, or where it is, does not come in: nothing
here has a state.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple, NewType, TypeAlias

import msgspec
from msgspec import Meta

from isthmus.runtime.clock import Duration

Handle = NewType("Handle", int)
"""A payload's number on its host. Cores see handles only; a negative handle names a constant of the graph."""

COUNT_MAX: Final = 1 << 60
"""Limit of counts and nanoseconds in messages: more than any host reaches, and sums of some fit into 64 bits."""
NUMBER_MAX: Final = 1 << 48
"""Limit of slots and incarnations in messages."""
NAME_LENGTH_MAX: Final = 500
"""Characters of a name in a message: of a role, a node or an edge."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Lasting: TypeAlias = Annotated[Duration, Meta(ge=0, le=COUNT_MAX)]
Name: TypeAlias = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]


ONE_MACHINE: Final = "local"
"""The name of the machine in a run that has no other."""


class Replica(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """A numbered place in a role (`learner/2`); for learners the number is the slot."""

    role: Name
    slot: Annotated[int, Meta(ge=0, le=NUMBER_MAX)]

    def __str__(self) -> str:
        return f"{self.role}/{self.slot}"

    @classmethod
    def parse(cls, text: str) -> Replica:
        """The replica that `text` such as 'learner/2' names; ValueError if it names none."""
        role, separator, slot = text.partition("/")
        if not role or not separator or not slot.isdecimal():
            raise ValueError(f"a replica is written role/number, not {text!r}")
        return cls(role, int(slot))


class Member(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """One incarnation (life) of a replica: incarnations count up from 1 and are never used again."""

    replica: Replica
    incarnation: Annotated[int, Meta(ge=1, le=NUMBER_MAX)]

    def __str__(self) -> str:
        return f"{self.replica}#{self.incarnation}"


LEARNERS_MAX: Final = 16_384
"""Learners that a run may have, with those that join: its slots. Sixteen times the most of any published run; a report
of each, and a row of 100 bytes in every list of them, are a few MB at the home."""
HOSTS_MAX: Final = LEARNERS_MAX + 1024
"""Hosts of a run at once: its learners, and those of other roles, such as shards, of which a model has as many as
fragments at most."""
PEERS_MAX: Final = LEARNERS_MAX + 512
"""Replicas that one host may meet, as a syncer does all learners. Each costs its channel two connections and some 30
kB; libzmq has sockets for 16,379 that are dialled."""
LIVES_MAX: Final = 4096
"""Lives of one machine beside the home, in a report: a hundred times the islands of a large one."""
LEARNER: Final = "learner"
"""The role whose replicas take an island each; all others run on the machine beside them. Where the runtime treats them
otherwise, it asks `takes_island` or `leads_island`."""
RECORDER: Final = "recorder"
"""The role of the one replica that keeps the run folder; its machine is the run's home. Likewise `keeps_run`."""
ONE_RECORDER: Final = Replica(RECORDER, 0)


_MACHINE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_machine_name(text: str) -> bool:
    """Whether a machine may be called so."""
    return _MACHINE.fullmatch(text) is not None


class MachineOwner(NamedTuple):
    """Whose a machine is, by `name`, and the largest share of a merge's weight that its machines may have together;
    None where that is what the program says."""

    name: str
    weight_share_max: float | None = None


ITS_OWN: Final = MachineOwner("")
"""That of a machine which stands for itself."""


class HostMachine(NamedTuple):
    """The machine of a host, by `name`, and whose it is; without a name where a run has one machine only, or that of
    the host is not known."""

    name: str = ""
    owner: MachineOwner = ITS_OWN


class Party(NamedTuple):
    """Whoever brought a machine: its owner, where one is told, else its invitation, else the machine itself.

    Its learners have at most `slots` slots together; None: as many as there are.
    """

    name: str
    slots: int | None = None


def owner_party(owner: str) -> str:
    """The name of an owner's party, which no machine has."""
    return f"owner {owner}"


def follower(leader: Replica, number: int) -> Replica:
    """Process `number` of a learner's island, beside its first one, which leads: `learner.1/0` of `learner/0`."""
    return Replica(f"{leader.role}.{number}", leader.slot)


def gang_number(replica: Replica) -> int:
    """The number of a process in its island; 0 for one that leads, or is alone."""
    _, _, number = replica.role.partition(".")
    return int(number) if number.isdecimal() else 0


def leader(replica: Replica) -> Replica:
    """The replica whose graph and devices this one serves: itself, unless it is a follower."""
    return Replica(replica.role.partition(".")[0], replica.slot) if gang_number(replica) else replica


def takes_island(replica: Replica) -> bool:
    """Whether a replica is a process of an island: it belongs to its machine, waits for it, and dials all others."""
    return leader(replica).role == LEARNER


def island_in(slot: int) -> Replica:
    """The replica that leads the island in a slot."""
    return Replica(LEARNER, slot)


def leads_island(replica: Replica) -> bool:
    """Whether it is the first process of an island, or the only one: by these islands are counted and judged."""
    return replica.role == LEARNER


def keeps_run(replica: Replica) -> bool:
    """Whether it keeps the run folder: what it says of the end is the end of the run, and it leaves last."""
    return replica.role == RECORDER


class Record(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of events and commands: compared and stored by value."""
