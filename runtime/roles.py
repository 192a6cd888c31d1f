"""Names of roles that the runtime itself knows, and of the processes of an island that spans several."""

from __future__ import annotations

from typing import Final

from isthmus.runtime.ids import Replica

LEARNER: Final = "learner"
"""The role whose replicas take an island each; all others run on the machine beside them."""
SYNCER: Final = "syncer"
"""The role of the shards that merge and hold the global model."""
RECORDER: Final = "recorder"
"""The role of the one replica that keeps the run folder; its machine is the run's home."""
ROLES: Final = (LEARNER, SYNCER, "evaluator")
"""The roles that a machine may declare, whether a graph has such a role or not."""


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
