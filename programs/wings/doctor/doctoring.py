"""`isthmus doctor`: measures, has it judged, and shows the checks."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer

from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.cluster.cluster_file import Cluster, read
from isthmus.programs.engine.cluster.placement import Machine
from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.machine.invitations import InvitationFile
from isthmus.programs.engine.machine.links import HomeAddress
from isthmus.programs.engine.request.environment import has_backend
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.engine.run.room_for_hosts import check_loopback
from isthmus.programs.study.terminal.figures import ProgressLine, Screen
from isthmus.programs.wings.doctor import others, this_machine
from isthmus.programs.wings.doctor.checks import (
    FAILS,
    DeclaredDevices,
    Facts,
    IslandFacts,
    NeedFacts,
    PeerFacts,
    judge,
    text_of,
)
from isthmus.runtime.errors import ConfigError, RequestError, RunError, nearest, printable
from isthmus.runtime.system import addresses
from isthmus.runtime.system.control_groups import memory_free
from isthmus.runtime.system.processes import SignalMasks, signal_masks

REQUEST_SECONDS_MAX: Final = 60
"""For the task's own code, and for reading its data: `isthmus train` waits for as long as they take."""
RUNS: Final = Path("runs")


def doctor(
    file: Path | None, invitation: Path | None, island: str | None, inherited: SignalMasks | None, *, as_json: bool
) -> bool:
    """Measure and show; returns whether no check fails. `inherited`: what the command's parent left to it.

    ConfigError if cluster file or invitation are wrong, both are given, or the file does not name `island`.
    """
    if file is not None and invitation is not None:
        do = "Leave one of them out."
        raise ConfigError("Reading the command line", "--cluster or --invite", "both", do)
    cluster = None if file is None else read(file)
    home = None if invitation is None else InvitationFile.named(invitation).home
    own = _own(cluster, island)
    line = ProgressLine()
    try:
        line.show("measuring this machine, and its way to others; a minute or two at most")
        checks = judge(_facts(cluster, home, own, island, inherited or signal_masks()))
    finally:
        line.show("")
    if as_json:
        typer.echo(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        typer.echo(printable(text_of(checks, Screen().width)))
    return all(check.state != FAILS for check in checks)


def check_no_link(parameters: int | None) -> None:
    """ConfigError for an option that only a link has a use for."""
    if parameters is not None:
        do = "Add --link A B, or leave it out."
        raise ConfigError("Reading --parameters", "--link or --links beside it", "neither", do)


def _own(cluster: Cluster | None, island: str | None) -> list[Machine]:
    """The machines of the cluster that this one is: those that --for names, or whose address is one of this machine."""
    if cluster is None:
        if island is not None:
            do = "Add --cluster FILE.toml, or leave --for out."
            raise ConfigError("Reading --for", "--cluster beside it, which declares it", "none", do)
        return []
    if island is not None:
        named = [each for each in cluster.machines if island in (each.name, each.island)]
        if not named:
            names = [name for each in cluster.machines for name in (each.name, each.island) if name is not None]
            raise ConfigError("Reading --for", f"a machine or island of {cluster.file}", island, nearest(island, names))
        here = [each for each in named if _is_here(each)]
        return here or [each for each in named if each.name == island] or named[:1]
    return [each for each in cluster.machines if each.address is not None and _is_here(each)]


def _is_here(machine: Machine) -> bool:
    if machine.address is None:
        return False
    found, _ = others.resolved(addresses.host_and_port(machine.endpoint)[0])
    return bool(found) and all(map(others.is_own, found))


def _facts(
    cluster: Cluster | None,
    home: HomeAddress | None,
    own: Sequence[Machine],
    island: str | None,
    inherited: SignalMasks,
) -> Facts:
    opening = this_machine.OpeningDevices()
    try:
        need = _need(cluster, own) if home is None else NeedFacts("a learner of whatever the home trains", 1, 1)
        loopback = ""
        try:
            check_loopback("Looking at this machine")
        except ConfigError as error:
            loopback = error.faults[0].found
        soft, hard = this_machine.descriptors()
        host_name = socket.gethostname()
        own_addresses, _ = others.resolved(host_name)
        return Facts(
            versions=this_machine.versions(),
            usable=None if opening.accelerators is None else opening.accelerators.platform,
            devices={str(platform): count for platform, count in environment.device_files().items()},
            declared=_declared(own),
            stale=this_machine.stale_variables(),
            user=this_machine.user(),
            loopback=loopback,
            pidfd=this_machine.pidfd_refusal(),
            ipv6=others.ipv6_refusal(),
            host_name=host_name,
            host_addresses=own_addresses,
            blocked=inherited.blocked,
            ignored=inherited.ignored,
            descriptors=soft,
            descriptors_max=hard,
            processes_max=this_machine.processes_max(),
            cores=this_machine.cores(),
            memory_bytes=memory_free(),
            shared_memory_bytes=this_machine.shared_memory_bytes(),
            disk=this_machine.disk(RUNS),
            store=this_machine.disk(Path(need.store)) if need.store else None,
            need=need,
            peers=_peers(cluster, own) if home is None else (others.inviting(home),),
            island=_island(own),
            misplaced=_misplaced(own, island),
            jax=opening.facts(),
        )
    finally:
        opening.end()


def _need(cluster: Cluster | None, own: Sequence[Machine]) -> NeedFacts:
    """What the cluster's run needs here, or the default one; prepared in a child, for REQUEST_SECONDS_MAX at most."""

    def work() -> dict[str, Any]:
        if not has_backend():  # In the child, which an alarm ends.
            signal.alarm(REQUEST_SECONDS_MAX)
        from isthmus.programs.wings.doctor.needs import needs

        request = Options(cluster=None if cluster is None else cluster.file).request().to_train()
        machines = () if cluster is None else cluster.machines
        return asdict(needs(request, machines, None if cluster is None else [each.name for each in own]))

    what = "the default run" if cluster is None else f"the run of {cluster.file}"
    try:
        return NeedFacts(**in_child(work))
    except RequestError as error:
        return NeedFacts(
            what, is_wrong=True, refusal="; ".join(f"{each.action}: {each.found}" for each in error.faults)
        )
    except RunError:
        return NeedFacts(what, refusal=f"not prepared within {REQUEST_SECONDS_MAX} s")


def _declared(own: Sequence[Machine]) -> DeclaredDevices | None:
    """The devices that the file declares for this machine; None if it declares none, or of several kinds."""
    devices = {each.device for each in own if each.device is not None}
    if len(devices) != 1:
        return None
    (device,) = devices
    count = sum((each.islands or 1) * each.devices for each in own if each.device is not None)
    return DeclaredDevices((device.kind, *device.names), count)


def _peers(cluster: Cluster | None, own: Sequence[Machine]) -> tuple[PeerFacts, ...]:
    """The facts of all machines with an address, measured at once: one that drops packets takes some seconds."""
    machines = [] if cluster is None else [each for each in cluster.machines if each.address is not None]
    if cluster is None or not machines:
        return ()
    reached = next((each for each in own if each.address is not None), None)
    with ThreadPoolExecutor(min(len(machines), 16)) as pool:
        return tuple(pool.map(lambda machine: others.peer(cluster, machine, reached), machines))


def _island(own: Sequence[Machine]) -> IslandFacts | None:
    """The island of several machines that this one is a part of."""
    part = next((each for each in own if each.island is not None), None)
    return None if part is None else IslandFacts(str(part.island), part.together, others.local_ports())


def _misplaced(own: Sequence[Machine], island: str | None) -> str:
    if island is None or not own or own[0].address is None or _is_here(own[0]):
        return ""
    return f"{own[0].endpoint}, the address of {own[0].name!r}, is none of this machine"
