"""The process of one host: `python -m isthmus.programs.engine.run.host_process RUN ROLE/SLOT INCARNATION DAEMON`.

Started by a daemon, never by hand. It builds the graph from the run's spec, lowers it, and serves its role's plan.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from setproctitle import setproctitle

from isthmus.programs.engine.islands.taken import take
from isthmus.programs.engine.recorder.roles import resolving
from isthmus.programs.engine.request import reference, spec
from isthmus.programs.engine.request.environment import prepare_environment
from isthmus.programs.engine.run.interrupts import unblock
from isthmus.runtime.graph.body import has
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Reference
from isthmus.runtime.host.contract import Island
from isthmus.runtime.host.own_process import HostProcess, meets
from isthmus.runtime.ids import LEARNER, Member, Replica, gang_number, leader
from isthmus.runtime.system.processes import end_after
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.security_keys import Keyring, read_pair
from isthmus.runtime.wire.zmq_sockets import ZmqSockets

PROXY: Final = "ISTHMUS_SOCKS_PROXY"
"""The variable of the environment that names a SOCKS5 proxy, ADDRESS:PORT, through which hosts dial each other."""


def settle_on_core(replica: Replica, learners: int) -> None:
    """Keep a learner on one core, where learners share the cores of this machine.

    Each gets an equal share. The kernel may leave three on one core for a second while the fourth has another to
    itself, and the answers of the three arrive too late (docs/decisions/0012).
    """
    cores = sorted(os.sched_getaffinity(0))
    if leader(replica).role == LEARNER and learners > len(cores):
        os.sched_setaffinity(0, {cores[(replica.slot + gang_number(replica)) % len(cores)]})


def begin_nursery(plan: Plan, member: Member, island: Island, seed: int, resolve: Callable[[Reference], Any]) -> None:
    """Start the nursery, which forks the processes that compute for this host: before it has threads."""
    node = next(node for node in plan.nodes if has(node.body, "work"))
    place = island.elastic.place(island.devices, island.kinds)

    def work(told: Mapping[str, Any], host: Any) -> None:
        given = {name: resolved(value) for name, value in node.keywords.items()}
        body = node.body(*map(resolved, node.arguments), **given)
        body.work(told, host, seed=seed, slot=member.replica.slot, place=place)

    def resolved(value: Any) -> Any:
        return resolve(value) if isinstance(value, Reference) else value

    island.elastic.begin_nursery(work)


def main(arguments: list[str]) -> int:
    """Serve until the daemon ends the run; returns the exit status."""
    folder, replica = Path(arguments[0]), Replica.parse(arguments[1])
    member = Member(replica, int(arguments[2]))
    setproctitle(f"isthmus {replica}")
    unblock()
    prepare_environment(1)
    told = spec.load(folder)
    sys.argv = list(told.settings.argv)
    island = take(member, told)
    settle_on_core(replica, told.here.learners)
    plan = told.plans()[replica.role]
    gang = None if island is None else island.elastic or island.gang
    resolve = resolving(folder, reference.resolve, told.settings.snapshot_every_seconds, told.snapshot_place(folder))
    if island is not None and island.elastic is not None:
        begin_nursery(plan, member, island, told.job.seed, resolve)
    machines: dict[Replica, str] = {}
    keys = None
    if told.here.secret:
        keys = Keyring(read_pair(Path(told.here.secret)), name=told.here.machine)
    host = HostProcess(
        plan,
        member,
        folder=folder,
        run=told.run,
        daemon=arguments[3],
        zero_ns=told.zero_ns,
        seed=told.job.seed,
        listens=None if leader(replica).role == LEARNER else told.here.address,
        endpoints=() if gang is None else gang.endpoints,
        on_roster=None if gang is None else gang.hear,
        elastic=None if island is None else island.elastic,
        machines=machines,
        keys=keys,
        meets=lambda other: meets(replica, other),
        resolve=resolve,
        open_channel=lambda clock, loop, watch: WireChannel(
            member,
            clock=clock,
            sockets=ZmqSockets(loop, keys, os.environ.get(PROXY, "")),
            run=told.run,
            fingerprint=told.fingerprint,
            watch=watch,
            machine_of=lambda other: machines.get(other.replica),
            holds_strangers=True,
        ),
        island=island,
        tape_bytes=told.settings.tape_bytes,
        keeps_payloads=told.settings.keep_payloads,
    )
    return host.run()


if __name__ == "__main__":
    end_after(lambda: main(sys.argv[1:]))
