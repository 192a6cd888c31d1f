"""The process of one host: `python -m isthmus.programs.run.host_process RUN ROLE/SLOT INCARNATION DAEMON`.

Started by a daemon, never by hand. It builds the graph from the run's spec, lowers it, and serves its role's plan.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from setproctitle import setproctitle

from isthmus.programs.islands.taken import take
from isthmus.programs.recorder.roles import resolving
from isthmus.programs.request import reference, spec
from isthmus.programs.request.environment import prepare_environment
from isthmus.programs.run.interrupts import unblock
from isthmus.runtime.host.own_process import HostProcess
from isthmus.runtime.host.roster import meets
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.roles import LEARNER, gang_number, leader
from isthmus.runtime.security.keys import Keyring, read_pair
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.zmq_sockets import ZmqSockets

PROXY: Final = "ISTHMUS_SOCKS_PROXY"
"""The variable of the environment that names a SOCKS5 proxy, ADDRESS:PORT, through which hosts dial each other."""


def settle_on_core(replica: Replica, learners: int) -> None:
    """Keep a learner on one core, where learners share the cores of this machine.

    Each has its part then. Left to the kernel, three may sit on one core for a second while the fourth has another one
    to itself, and theirs are the answers that come too late (docs/decisions/0012).
    """
    cores = sorted(os.sched_getaffinity(0))
    if leader(replica).role == LEARNER and learners > len(cores):
        os.sched_setaffinity(0, {cores[(replica.slot + gang_number(replica)) % len(cores)]})


def main(arguments: list[str]) -> int:
    """Serve until the daemon says that it is over; the exit status."""
    folder, replica = Path(arguments[0]), Replica.parse(arguments[1])
    member = Member(replica, int(arguments[2]))
    setproctitle(f"isthmus {replica}")
    unblock()
    prepare_environment(1)
    told = spec.load(folder)
    sys.argv = list(told.argv)
    island = take(member, told)
    settle_on_core(replica, told.here.learners)
    plan = told.plans()[replica.role]
    gang = None if island is None else island.gang

    resolve = resolving(folder, reference.resolve, told.snapshot_every_seconds)
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
    )
    return host.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
