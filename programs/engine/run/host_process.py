"""The process of one host: `python -m isthmus.programs.engine.run.host_process RUN ROLE/SLOT INCARNATION DAEMON`.

Started by a daemon, never by hand. It builds the graph from the run's spec, lowers it, and serves its role's plan.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from isthmus.ops.island.heap import keep_no_large_blocks
from isthmus.programs.engine.recorder.run_references import resolving
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.environment import made_devices, prepare_environment
from isthmus.programs.engine.run.plans_apart import plans_of
from isthmus.programs.engine.run.seats import note_seat
from isthmus.programs.job import TensorSpec
from isthmus.programs.program_graph import EVALUATOR
from isthmus.runtime.graph.body import has
from isthmus.runtime.graph.plans import Plan, peers_most
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.host.contract import IslandDevices
from isthmus.runtime.host.own_process import HostProcess, PeerReach, RunLife, meets
from isthmus.runtime.host.threads import LentThread
from isthmus.runtime.ids import LEARNER, Member, Replica, gang_number, leader
from isthmus.runtime.system import phases
from isthmus.runtime.system.processes import BESIDE_NICENESS, began_ns, end_after, follow_daemon, name_process
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.peers import FAR_LIMITS, Limits
from isthmus.runtime.wire.security_keys import Keyring, read_pair
from isthmus.runtime.wire.segment_links import SegmentDesk
from isthmus.runtime.wire.zmq_sockets import ZmqSockets

PROXY: Final = "ISTHMUS_SOCKS_PROXY"
"""The variable of the environment that names a SOCKS5 proxy, ADDRESS:PORT, through which hosts dial each other."""


def settle_on_core(
    replica: Replica,
    here: spec.Here,
    of: Collection[int] | None = None,
    variables: Mapping[str, str] = os.environ,
) -> None:
    """Keep a learner on one core, where learners share the cores of this machine; where they have devices each, keep
    syncer and recorder on cores that no learner uses; `of`: the cores that there are, those of this process by
    default, which may have settled before; `variables`: those of its machine.

    Each gets an equal share. The kernel may leave three on one core for a second while the fourth has another to
    itself, and the answers of the three arrive too late (docs/decisions/0012).
    """
    cores = sorted(os.sched_getaffinity(0) if of is None else of)
    learners, role = here.learners, leader(replica).role
    of_islands, of_others = cores_apart(cores, here.islands_here)
    if has_accelerators(here, variables) or (of_islands != of_others and are_made(here, variables)):
        if role != EVALUATOR:  # It computes for long where it is on the CPU, and may have all of them.
            _settle(of_islands if role == LEARNER else of_others)
        return
    if role == LEARNER and learners > len(cores):
        _settle({cores[(replica.slot + gang_number(replica)) % len(cores)]})


def _settle(cores: Collection[int]) -> None:
    """Keep this process on these cores, with all threads that it has by now."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def cores_apart(cores: Iterable[int], islands: int) -> tuple[frozenset[int], frozenset[int]]:
    """The cores of islands on accelerators, and those of the other hosts of their machine: the last ones, as many as an
    island has and two at least. All are everybody's where that would leave less than two to an island: a learner has a
    thread that dispatches, and others that move data.
    """
    every = sorted(cores)
    apart = max(len(every) // (islands + 1), CORES_APART_MIN)
    if len(every) - apart < CORES_OF_ISLAND_MIN * islands:
        return frozenset(every), frozenset(every)
    return frozenset(every[:-apart]), frozenset(every[-apart:])


CORES_APART_MIN: Final = 2
"""Of syncer and recorder: one merges while the other writes."""
CORES_OF_ISLAND_MIN: Final = 2


def has_accelerators(here: spec.Here, environment: Mapping[str, str] = os.environ, root: Path = Path("/dev")) -> bool:
    """Whether the learners of a machine compute on accelerators, told without what they load for it
    (`islands.environment.find`): syncer and recorder ask, too."""
    wanted = environment.get("JAX_PLATFORMS", "").split(",")[0]
    if "cpu" in (wanted, *map(str.casefold, here.kinds)):
        return False
    files = {"nvidia[0-9]*": ("jax_cuda12_plugin", "jax_cuda13_plugin"), "accel[0-9]*": ("libtpu",)}
    files["vfio/[0-9]*"] = files["accel[0-9]*"]
    return any(any(root.glob(form)) and any(map(find_spec, plugins)) for form, plugins in files.items())


def are_made(here: spec.Here, variables: Mapping[str, str] = os.environ) -> bool:
    """Whether the learners of a machine divide devices that XLA is told to make of its CPU."""
    return bool(made_devices(variables)) and not here.kinds


def host_of(
    folder: Path,
    run_spec: spec.Spec,
    member: Member,
    daemon: str,
    plan: Plan,
    *,
    island: IslandDevices | None = None,
    lent: tuple[int, LentThread] | None = None,
) -> HostProcess:
    """The host of a member, which serves its role's plan under the daemon at an endpoint; `lent` as in HostProcess."""
    replica = member.replica
    if leader(replica).role not in (LEARNER, EVALUATOR):  # Those of jax do it, and PyTorch's keep malloc's own limit.
        keep_no_large_blocks(sum(4 * math.prod(tensor.shape) for tensor in run_spec.job.layout))
    resolve, job = resolving_of(folder, run_spec, replica), run_spec.job
    if island is not None:
        island.processes.begin(island, lambda: computing_body(plan, resolve), job.seed, replica.slot)
    here = run_spec.here
    reach = PeerReach(
        lambda other: meets(replica, other),
        listens=None if leader(replica).role == LEARNER else here.listens,
        porter=here.porter,
        reaches=dict(here.reaches),
        only_porters=here.is_far and bool(here.reaches),
        is_inside=here.is_inside,
        keys=Keyring(read_pair(Path(here.secret)), name=here.machine) if here.secret else None,
    )
    limits = (FAR_LIMITS if here.is_far else Limits()).for_peers(peers_most(plan, run_spec.most))
    return HostProcess(
        plan,
        RunLife(
            member,
            folder,
            run_spec.run,
            daemon,
            run_spec.zero_ns,
            job.seed,
            run_spec.settings.tape_bytes,
            niceness_of(replica, job.layout),
        ),
        reach,
        resolve=resolve,
        open_channel=lambda clock, loop, watch: WireChannel(
            member,
            clock=clock,
            sockets=ZmqSockets(
                loop,
                reach.keys,
                os.environ.get(PROXY, ""),
                is_far=here.is_far,
                peers_max=limits.peers_max,
                # What is shared passes no proxy, which is there to be passed.
                desk=SegmentDesk() if run_spec.settings.shared_memory and PROXY not in os.environ else None,
            ),
            run=run_spec.run,
            fingerprint=run_spec.fingerprint,
            limits=limits,
            watch=watch,
            machine_of=lambda other: reach.machines.get(other.replica),
            holds_strangers=True,
        ),
        island=island,
        lent=lent,
    )


def computing_body(plan: Plan, resolve: Callable[[Reference], Any]) -> Any:
    """The body of a plan that computes on the devices of an island, not opened."""
    node = next(node for node in plan.nodes if has(node.body, "computes"))

    def resolved(value: Any) -> Any:
        return resolve(value) if isinstance(value, Reference) else value

    return node.body(*map(resolved, node.arguments), **{name: resolved(each) for name, each in node.keywords.items()})


def niceness_of(replica: Replica, layout: Sequence[TensorSpec]) -> int:
    """The nice level at which a host computes from its opening on, for a model of this layout."""
    if replica.role != EVALUATOR:
        return 0
    from isthmus.programs.engine.islands.environment import gives_way

    return BESIDE_NICENESS if gives_way(layout) else 0


def resolving_of(folder: Path, run_spec: spec.Spec, replica: Replica) -> Callable[[Reference], Any]:
    """What references mean to a host of a run."""
    seconds = run_spec.settings.snapshot_every_seconds
    return resolving(folder, run_spec.resolving(replica), seconds, run_spec.snapshot_place(folder))


def main(arguments: list[str], plans: Mapping[str, Plan] | None = None) -> int:
    """Serve until the daemon ends the run; returns the exit status. `plans`: those of the run, if they are known."""
    follow_daemon()
    prepare_environment(1)
    return serve(arguments, plans, began_ns())


def serve(
    arguments: list[str], plans: Mapping[str, Plan] | None, begun_ns: int, cores: Collection[int] | None = None
) -> int:
    """The same, in a process that follows its daemon and is prepared; this life has begun at an instant, and `cores` as
    in `settle_on_core`."""
    folder, replica = Path(arguments[0]), Replica.parse(arguments[1])
    member = Member(replica, int(arguments[2]))
    name_process(f"isthmus {replica}")
    phases.note(folder, str(replica), "begun", life=member.incarnation, at_ns=begun_ns)
    run_spec = spec.load(folder)
    sys.argv = list(run_spec.settings.argv)
    island, devices, variables = None, list[str](), dict(os.environ)
    if leader(replica).role in run_spec.computing:
        # Others have none.
        from isthmus.programs.engine.islands.claims import claim_island, claimed
        from isthmus.programs.engine.islands.kept_programs import compile_once

        island = claim_island(member, run_spec, folder)
        devices = claimed()
        compile_once(folder, str(replica), member.incarnation)
    settle_on_core(replica, run_spec.here, cores, variables)
    note_seat(folder, str(replica), member.incarnation, devices)
    plan = (plans_of(run_spec, folder) if plans is None else plans)[replica.role]
    return host_of(folder, run_spec, member, arguments[3], plan, island=island).run()


if __name__ == "__main__":
    end_after(lambda: main(sys.argv[1:]))
