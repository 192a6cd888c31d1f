"""What a request needs of this machine: hosts, memory, room for snapshots; by shapes, as placement does."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.programs.engine.cluster.placement import Machine, Topology
from isthmus.programs.engine.cluster.placing import host_bytes, placed
from isthmus.programs.engine.request.model_sizes import FLOAT32_BYTES, learner_bytes, parameter_count
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.request.snapshot_room import SnapshotNeeds, of_folder, of_store, store_folder
from isthmus.programs.wings.doctor.checks import NeedFacts
from isthmus.runtime.ids import LEARNER, leader

_HERE = "here"


def needs(request: Request, machines: Sequence[Machine], names: Sequence[str] | None) -> NeedFacts:
    """What the hosts need that are placed on the machines `names` of `machines`; None for names: of this machine alone.

    Without names, in a cluster, it is what one learner needs that joins. PlacementError with the obstacles.
    """
    interval = request.run.snapshot_every_seconds
    kept = SnapshotNeeds.of(request)
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
    own = len(hosts), learners, sum(memory[name] for name in names)
    if placement.home not in names or kept is None:
        return NeedFacts(what, *own)
    folder, store = of_folder(kept, learners, has_store=bool(request.run.snapshots)), store_folder(request)
    return NeedFacts(
        what,
        *own,
        snapshot_bytes=kept.most,
        snapshot_seconds=interval,
        disk_least=folder.least,
        disk_most=folder.most,
        store="" if store is None else str(store),
        store_least=0 if store is None else of_store(kept).least,
        store_most=0 if store is None else of_store(kept).most,
    )
