"""Local batches: the number of sequences in a batch of each learner of the shipped task, where islands are not equal.

By default every learner has the same batch and its own pace, as in the paper; a slow one then answers with fewer steps.
With `run.local_batch = "paced"` the batches of a run on a cluster follow the predicted speeds of the islands, so that
all take steps of one length: together they hold as many sequences as before, and none is empty. Weights of a merge
follow the tokens either way. The decision is written into `task.batch`, so that the resolved configuration starts the
same run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from isthmus.ops.data.batches import of_slot
from isthmus.programs.cluster.placing import placed
from isthmus.programs.request.request import SHIPPED_TASK, Request
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.placement import Topology
from isthmus.runtime.ids import LEARNER

_DOING: Final = "Reading run.local_batch"


def paced(request: Request, topology: Topology | None) -> tuple[int, ...]:
    """`task.batch` for which the learners of `request` keep pace on these machines: the number of sequences of each
    slot, and last, for learners that join, the requested one.

    ConfigError if it cannot be determined; PlacementError if the request does not fit on the machines.
    """
    if not request.job.task.text.startswith(SHIPPED_TASK):
        do = "Let task.batch and tokens_per_batch follow at.slot there, and leave run.local_batch out."
        raise ConfigError(_DOING, "'same' beside a task of your own", "'paced'", do)
    if topology is None:
        do = "Name the machines with --cluster, or leave run.local_batch out."
        raise ConfigError(_DOING, "a cluster beside 'paced'", "none", do)
    machines = topology.by_name()
    hosts = [machines[name] for name in placed(request, topology).of_role(LEARNER)]
    unknown = dict.fromkeys(host.name for host in hosts if host.island_flops is None)
    if unknown:
        do = "Give it a `device` in the cluster file, or leave run.local_batch out."
        expected = "a known device on every machine that has learners"
        raise ConfigError.of([Fault(_DOING, expected, f"none on {name!r}", do) for name in unknown])
    batch = request.config["task"]["batch"]
    total = sum(of_slot(batch, slot) for slot in range(len(hosts)))
    return (*shares(total, [host.island_flops or 0.0 for host in hosts]), of_slot(batch, len(hosts)))


def shares(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """`total` cut into whole parts in proportion to `speeds`, each at least 1, by largest remainders (ties: the first).

    Where `total` is below the number of parts, each is 1.
    """
    sizes = [1] * len(speeds)
    exact = [total * speed / sum(speeds) for speed in speeds]
    for _ in range(total - len(speeds)):
        neediest = max(range(len(speeds)), key=lambda slot: (exact[slot] - sizes[slot], -slot))
        sizes[neediest] += 1
    return tuple(sizes)
