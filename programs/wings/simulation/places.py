"""Where the replicas of a simulated run of a program are."""

from __future__ import annotations

from isthmus.programs.program_graph import REGION, SYNCER
from isthmus.runtime.ids import LEARNER, Replica, leader
from isthmus.runtime.sim.universe import HOME


def machine_of(replica: Replica) -> str:
    """The default machine of a replica: a learner or a syncer on one of its own, everything else at home."""
    return f"{replica.role}-{replica.slot}" if leader(replica).role in (LEARNER, SYNCER, REGION) else HOME
