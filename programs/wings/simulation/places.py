"""The replicas of a simulated run of a program, and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus.programs.engine.cluster.handover import MOVABLE
from isthmus.programs.program_graph import REGION, SYNCER
from isthmus.runtime.ids import LEARNER, Replica, leader
from isthmus.runtime.sim.universe import HOME, MachinesOfRun
from isthmus.runtime.supervision.home_events import RunRoles


def machine_of(replica: Replica) -> str:
    """The default machine of a replica: a learner or a syncer on one of its own, everything else at home."""
    return f"{replica.role}-{replica.slot}" if leader(replica).role in (LEARNER, SYNCER, REGION) else HOME


MACHINES: Final = MachinesOfRun(machine_of, MOVABLE)
"""Of a run whose machines are their own."""


def cast_of(counts: Mapping[str, int], least: Mapping[str, int]) -> RunRoles:
    """So many replicas of each role, and the smallest number of some, with which the run can go on."""
    return RunRoles(roles=dict(counts), least=dict(least), group_role=REGION)
