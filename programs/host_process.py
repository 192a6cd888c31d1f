"""The process of one host: `python -m isthmus.programs.host_process RUN ROLE/SLOT INCARNATION DAEMON`.

Started by a daemon, never by hand. It builds the graph from the run's spec, lowers it, and serves its role's plan.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

from isthmus.programs import reference, spec
from isthmus.programs.environment import prepare_environment
from isthmus.programs.recording import RUN_FOLDER
from isthmus.runtime.graph import Reference
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.lowering import lower
from isthmus.runtime.process import HostProcess, Meeting
from isthmus.runtime.wire import ZmqChannel


def meets(mine: Replica, other: Replica) -> Meeting:
    """How two hosts meet: learners dial all others and are never dialled, so that they may sit behind NAT, and reach
    each other through a relay; of two others the one that comes first by name dials."""
    if mine.role == other.role == "learner":
        return "relay"
    if "learner" in (mine.role, other.role):
        return "dial" if mine.role == "learner" else "wait"
    return "dial" if mine < other else "wait"


def settle_on_core(replica: Replica, learners: int) -> None:
    """Keep a learner on one core, where learners share the cores of this machine.

    Each has its part then. Left to the kernel, three may sit on one core for a second while the fourth has another one
    to itself, and theirs are the answers that come too late (docs/decisions/0012).
    """
    cores = sorted(os.sched_getaffinity(0))
    if replica.role == "learner" and learners > len(cores):
        os.sched_setaffinity(0, {cores[replica.slot % len(cores)]})


def main(arguments: list[str]) -> int:
    """Serve until the daemon says that it is over; the exit status."""
    folder, replica = Path(arguments[0]), Replica.parse(arguments[1])
    member = Member(replica, int(arguments[2]))
    setproctitle(f"isthmus {replica}")
    prepare_environment(1)
    told = spec.load(folder)
    settle_on_core(replica, told.roles.get("learner", 0))
    plan = lower(told.graph())[replica.role]

    def resolve(wanted: Reference) -> Any:
        return folder if wanted == RUN_FOLDER else reference.resolve(wanted)

    host = HostProcess(
        plan,
        member,
        folder=folder,
        daemon=arguments[3],
        zero_ns=told.zero_ns,
        seed=told.job.seed,
        binds=replica.role != "learner",
        meets=lambda other: meets(replica, other),
        resolve=resolve,
        open_channel=lambda clock, loop, watch: ZmqChannel(
            member, clock=clock, loop=loop, run=told.run, fingerprint=told.fingerprint, watch=watch
        ),
    )
    return host.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
