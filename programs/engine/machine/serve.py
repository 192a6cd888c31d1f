"""`isthmus daemon`: the daemon of a machine, in the foreground.

It prints lines to standard output with its address and the runs that it took, finished and refused. The first Ctrl-C
asks its runs to stop and waits for them; a second one ends them at once. SIGTERM and SIGHUP are a notice: within the
grace its runs are set aside for the next daemon of its name, and learners that it has of others' leave after a last
answer; its exit status is 75. Either way nothing is left running. A daemon that is killed leaves its runs to the next
one of its name; without one they end within a minute.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import uvloop
import zmq

from isthmus.programs.engine.cluster import cluster_file, machine_file
from isthmus.programs.engine.cluster.cluster_file import HOSTS_OF_RUN
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.names import DaemonRun, NameClaim, admitted_path, machines_folder
from isthmus.programs.engine.machine.service_manager import ServiceManager
from isthmus.programs.engine.machine.services import DaemonService
from isthmus.programs.engine.metrics.exporter import MetricsAddress
from isthmus.programs.engine.request.grace import GRACE_SECONDS
from isthmus.programs.engine.run.interrupts import Interrupts, drop_untaken_output, handle
from isthmus.programs.engine.run.room_for_hosts import check_loopback, check_room_for
from isthmus.programs.settings import collecting
from isthmus.runtime.errors import INTERRUPTED_STATUS, ConfigError, Fault, log_entry, shortened
from isthmus.runtime.system.addresses import host_and_port, is_name
from isthmus.runtime.system.processes import name_process
from isthmus.runtime.system.refusals import remedy
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.security_keys import Keyring

if TYPE_CHECKING:
    from isthmus.programs.engine.machine.bucket_road import RoadPlace

LINE_LENGTH_MAX: Final = 2000


class OwnRunRequest(NamedTuple):
    """A daemon's own run that is asked for: its cluster file, its folder, and whether one that is there goes on, with
    changes, too."""

    file: Path
    run_dir: Path | None
    goes_on: bool
    accepts_changes: bool = False


def serve(
    name: str,
    listen: str,
    config: Path | None,
    grace: float = GRACE_SECONDS,
    *,
    ports: str = "",
    own: OwnRunRequest | None = None,
    until_over: bool = False,
    metrics: MetricsAddress | None = None,
    via: str | None = None,
    every: float | None = None,
    own_data: Sequence[str] = (),
) -> int:
    """Serve until signals end it, or, `until_over`, its runs are over.

    Arguments:
        name: that of the machine.
        listen: the endpoint at which commands and other daemons reach it.
        config: the machine.toml, if there is one.
        grace: the seconds from a notice until all has left.
        ports: those at which hosts listen, `A-B`; empty for any.
        own: a run to begin.
        until_over: it ends with its runs.
        metrics: where its figures are asked for.
        via: the store through which machines may come.
        every: the seconds after which it looks there again.
        own_data: files and folders on which learners here train, in place of a run's data.

    Returns the exit status: 75 after SIGTERM, 1 if a second Ctrl-C ended runs, or a run has failed `until_over`,
    otherwise 0.

    ConfigError if name, address or configuration are wrong, or taken.
    """
    faults: list[Fault] = []
    with collecting(faults):
        cluster_file.checked_name(name, "Reading --name", "for example --name alpha")
    endpoint, permitted = "", machine_file.MachineConfig()
    with collecting(faults):
        permitted = machine_file.read(config, own_data)
    with collecting(faults):
        has_keys = permitted.pair is not None
        endpoint = cluster_file.checked_address(listen, "Reading --listen", may_choose=True, has_keys=has_keys)
    with collecting(faults):
        permitted = replace(permitted, ports=ports and cluster_file.checked_ports(ports, endpoint))
    if own is not None:
        with collecting(faults):
            cluster_file.read(own.file)
    place = None
    with collecting(faults):
        place = checked_road(via, every)
        if place is not None and permitted.pair is None:
            raise ConfigError("Reading --via", "a daemon with keys", "one without", machine_file.DO_KEYS)
    if faults:
        raise ConfigError.of(faults)

    services: list[DaemonService] = []
    if place is not None:
        from isthmus.programs.engine.machine.bucket import Bucket

        services.append(Bucket(place))
    if own is not None:
        from isthmus.programs.engine.machine.own_run import OwnRun

        services.append(OwnRun(own.file, own.run_dir, goes_on=own.goes_on, accepts_changes=own.accepts_changes))
    is_far = place is not None
    # On loopback, too: a tunnel may lead there. Machines that join dial out only, and need none.
    permitted = replace(permitted, is_far=is_far, has_porter=True, grace=grace, until_over=until_over)
    if permitted.site.data:  # A message of an error may have a row of them, or the name of a file.
        permitted = replace(permitted, error_texts=permitted.error_texts or "local")
    return run(name, endpoint, permitted, services, metrics)


def checked_road(via: str | None, every: float | None) -> RoadPlace | None:
    """The store that --via names, which can be written; ConfigError for another one."""
    if via is None:
        if every is not None:
            raise ConfigError("Reading --via-every", "--via beside it", "none", "Name the store with --via.")
        return None
    from isthmus.programs.engine.machine import bucket_road  # Of a machine whose way leads through a store.

    place = bucket_road.road_place(via, every)
    bucket_road.check(place)
    return place


def run(
    name: str,
    endpoint: str,
    permitted: MachineConfig,
    services: Sequence[DaemonService],
    metrics: MetricsAddress | None = None,
) -> int:
    """Run the daemon `name` until signals, or another machine, end it; returns the exit status.

    It has these services, and one that follows whom its machine admits. ConfigError if name or address are taken, or
    for a later fault (`MachineDaemon.fail`).
    """
    doing = f"Starting the daemon {name!r}"
    check_room_for(doing, HOSTS_OF_RUN)
    check_loopback(doing)
    manager = ServiceManager.of(os.environ)
    early = Interrupts()
    numbers = handle(early.on_signal)
    claim = NameClaim(name)
    loop = uvloop.new_event_loop()
    try:
        machine = _open(loop, name, endpoint, permitted, claim, [*services, *_usual(permitted, metrics)])
    except BaseException:
        claim.close(forget=False)
        raise
    name_process(f"isthmus daemon {name}")
    _tell(f"daemon {name} listens at {machine.endpoint}, process id {os.getpid()}")
    threading.Thread(target=_tell_unresolved, args=(machine.endpoint,), daemon=True).start()
    claim.write(machine.endpoint, claim.former)
    for run in claim.former:
        machine.adopt(run)

    def take_over() -> None:
        """Hear signals on the loop, which would have lost them before it ran, and those that came until now."""
        for number in numbers:
            loop.add_signal_handler(number, on_signal, number)
        for _ in range(early.presses):
            on_signal(signal.SIGINT)
        if early.is_to_leave:
            on_signal(signal.SIGTERM)

    def on_signal(number: int) -> None:
        manager.stop()
        if number == signal.SIGINT:
            machine.request_end()
        else:
            machine.set_aside()

    loop.call_soon(take_over)
    loop.call_soon(manager.follow, machine.later, machine.summary)
    loop.run_forever()
    manager.stop()
    machine.close()
    claim.close(forget=not machine.is_set_aside)
    _tell(f"daemon {name} has ended")
    drop_untaken_output()
    if machine.fault is not None:
        raise machine.fault
    if machine.has_killed or machine.has_failed:
        return 1
    return INTERRUPTED_STATUS if machine.is_set_aside and not machine.is_over else 0


def parts_folder(name: str) -> Path:
    """The folder in which the daemon of this name has its parts of other homes' runs."""
    return machines_folder().parent.parent / "runs" / name


def _usual(permitted: MachineConfig, metrics: MetricsAddress | None) -> list[DaemonService]:
    """The services that a daemon with keys has, and one whose metrics are asked for."""
    found: list[DaemonService] = []
    if permitted.pair is not None:
        from isthmus.programs.engine.machine.admissions import Admissions

        found.append(Admissions())
    if metrics is not None:
        from isthmus.programs.engine.machine.metrics_service import Metrics

        found.append(Metrics(metrics))
    return found


def _keyring(name: str, permitted: MachineConfig) -> Keyring | None:
    """The keys of the daemon, None without; its machine has no list of those that it admits if it never had any."""
    if permitted.pair is None and not admitted_path(name).exists():
        return None
    from isthmus.programs.engine.machine import admissions

    return admissions.keyring(name, permitted)


@final
class _Foreground:
    """This process, which runs the daemon that has claimed a name, on a loop."""

    def __init__(self, claim: NameClaim, loop: Any) -> None:
        self._claim, self._loop = claim, loop

    def tell(self, line: str) -> None:
        _tell(line)

    def changed(self, endpoint: str, runs: list[DaemonRun]) -> None:
        self._claim.write(endpoint, runs)

    def idle(self) -> None:
        self._loop.stop()


def _open(
    loop: Any, name: str, endpoint: str, permitted: MachineConfig, claim: NameClaim, services: Sequence[DaemonService]
) -> MachineDaemon:
    """The daemon, bound; ConfigError if its address is taken."""
    keys, owner = _keyring(name, permitted), _Foreground(claim, loop)
    try:
        return MachineDaemon(loop, name, endpoint, permitted, keys, parts_folder(name), owner, services)
    except (zmq.ZMQError, OSError) as error:
        doing = f"Listening at {endpoint}"
        if error.errno == zmq.EADDRINUSE:
            do = "Take another port with --listen, or end what listens there."
            raise ConfigError(doing, "a free port", _who(endpoint), remedy(error, do)) from None
        do = "Name an address of this machine, such as tcp://127.0.0.1:7400."
        raise ConfigError(doing, "an address and a port that can be bound", str(error), remedy(error, do)) from None


def _who(endpoint: str) -> str:
    """The daemon that listens on a taken port, if it answers."""
    answer = None
    with suppress(ConfigError):
        answer = ask(endpoint, {"type": "machine"}, seconds_max=1.0)
    if answer is None or answer["type"] != "machine":
        return "one in use"
    return f"the daemon {answer['name']!r}, process id {answer['pid']}"


def _tell_unresolved(endpoint: str) -> None:
    """Warn of an endpoint whose name this machine cannot resolve: others may, and hosts here cannot."""
    host, port = host_and_port(endpoint)
    if not is_name(host):
        return
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        _tell(
            f"warning: this machine cannot resolve {host} ({error.strerror or error}), so that nothing here finds this "
            f"daemon by that name: enter it in /etc/hosts or DNS, or listen at an address, --listen tcp://10.0.0.1:{port}"
        )


def _tell(line: str) -> None:
    """Print a line for people; standard output may be closed.

    Further lines of it are indented, because parts of it come from other machines.
    """
    with suppress(OSError, ValueError):
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {shortened(log_entry(line), LINE_LENGTH_MAX)}\n")
        sys.stdout.flush()
