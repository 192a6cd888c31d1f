"""What a request needs of this machine: hosts, memory, room for snapshots; by shapes, as placement does."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.programs.engine.cluster.placing import (
    FLOAT32_BYTES,
    host_bytes,
    learner_bytes,
    parameter_count,
    placed,
)
from isthmus.programs.engine.request.request import Request
from isthmus.programs.study.doctor.checks import NeedFacts
from isthmus.runtime.graph.placement import Machine, Topology
from isthmus.runtime.ids import LEARNER, leader

_HERE = "here"


def needs(request: Request, machines: Sequence[Machine], names: Sequence[str] | None) -> NeedFacts:
    """What the hosts need that are placed on the machines `names` of `machines`; None for names: of this machine alone.

    Without names, in a cluster, it is what one learner needs that joins. PlacementError with the obstacles.
    """
    interval = request.run.snapshot_every_seconds
    snapshot = 2 * FLOAT32_BYTES * parameter_count(request)  # Values and momentum.
    if names is None:
        machines, names = (Machine(_HERE, address="tcp://127.0.0.1:1"),), (_HERE,)
    if not names:
        state = learner_bytes(request) + FLOAT32_BYTES * parameter_count(request)
        return NeedFacts("a learner that joins", 1, 1, state)
    topology = Topology(tuple(machines))
    placement = placed(request, topology)
    memory = host_bytes(request, topology, placement)
    hosts = [replica for replica, name in placement.machines.items() if name in names]
    learners = sum(leader(replica).role == LEARNER for replica in hosts)
    what = f"{len(hosts)} host{'' if len(hosts) == 1 else 's'} of {request.program.reference}"
    is_home = placement.home in names
    return NeedFacts(
        what,
        len(hosts),
        learners,
        sum(memory[name] for name in names),
        snapshot if is_home else 0,
        interval if is_home else 0.0,
    )
