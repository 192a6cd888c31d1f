"""`isthmus join`: a machine that offers its islands to the runs of another, for as long as this process lives.

It only dials out, so it may be behind NAT. Off loopback it has a key, which is made if there is none, and waits until
the other end has admitted it; it prints the command to type there. Ctrl-C takes it away again.

`isthmus daemon`: the daemon of a machine, in the foreground.

It prints lines to standard output with its address and the runs that it took, finished and refused. The first Ctrl-C
asks its runs to stop and waits for them; a second one ends them at once. SIGTERM and SIGHUP are a notice: within the
grace its runs are set aside for the next daemon of its name, and learners that it has of others' leave after a last
answer; its exit status is 75. Either way nothing is left running. A daemon that is killed leaves its runs to the next
one of its name; without one they end within a minute.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import uvloop
import zmq
from setproctitle import setproctitle

from isthmus.programs.engine.cluster import cluster_file, machine_file
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine import admissions as machine_keys
from isthmus.programs.engine.machine.admissions import Admissions
from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.links import HomeAddress, HomeLink
from isthmus.programs.engine.machine.names import DaemonRun, NameClaim, machines_folder
from isthmus.programs.engine.run.interrupts import GRACE_SECONDS, Interrupts, handle
from isthmus.programs.engine.run.private_daemon import check_loopback
from isthmus.programs.settings import collecting
from isthmus.runtime.errors import INTERRUPTED_STATUS, ConfigError, Fault, log_entry
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.security_keys import KeyPair, is_loopback, read_pair, read_public

LINE_LENGTH_MAX: Final = 2000


def serve(name: str, listen: str, config: Path | None, grace: float = GRACE_SECONDS, ports: str = "") -> int:
    """Serve until signals end it; returns the exit status: 0, 75 after SIGTERM, or 1 if a second Ctrl-C ended runs.

    ConfigError if name, address or configuration are wrong, or taken.
    """
    faults: list[Fault] = []
    with collecting(faults):
        cluster_file.checked_name(name, "Reading --name", "for example --name alpha")
    endpoint, permitted = "", machine_file.MachineConfig()
    with collecting(faults):
        permitted = machine_file.read(config)
    with collecting(faults):
        has_keys = permitted.pair is not None
        endpoint = cluster_file.checked_address(listen, "Reading --listen", may_choose=True, has_keys=has_keys)
    with collecting(faults):
        permitted = replace(permitted, ports=ports and cluster_file.checked_ports(ports, endpoint))
    if faults:
        raise ConfigError.of(faults)
    return run(name, endpoint, permitted, lambda machine: None, grace)


def run(
    name: str, endpoint: str, permitted: MachineConfig, begin: Callable[[MachineDaemon], None], grace: float
) -> int:
    """Run the daemon `name` until signals, or another machine, end it; returns the exit status.

    `begin` is called at the start. ConfigError if name or address are taken, or for a later fault
    (`MachineDaemon.fail`).
    """
    check_loopback(f"Starting the daemon {name!r}")
    early = Interrupts()
    numbers = handle(early.on_signal)
    claim = NameClaim(name)
    loop = uvloop.new_event_loop()
    try:
        machine = _open(loop, name, endpoint, permitted, claim, grace)
        begin(machine)
    except BaseException:
        claim.close(forget=False)
        raise
    setproctitle(f"isthmus daemon {name}")
    _tell(f"daemon {name} listens at {machine.endpoint}, process id {os.getpid()}")
    admissions = None
    if machine.keys is not None:
        who = machine.neighbours
        admissions = Admissions(
            loop, name, machine.keys, tell=_tell, on_admitted=who.readmit, on_expelled=who.expel_quietly
        )
    claim.write(machine.endpoint, claim.former)
    for run in claim.former:
        machine.adopt(run)

    def take_over() -> None:
        """Hear signals on the loop, which would have lost them before it ran, and those that came until now."""
        for number in numbers:
            loop.add_signal_handler(number, machine.request_end if number == signal.SIGINT else machine.set_aside)
        for _ in range(early.presses):
            machine.request_end()
        if early.is_to_leave:
            machine.set_aside()

    loop.call_soon(take_over)
    loop.run_forever()
    machine.close()
    if admissions is not None:
        admissions.close()
    claim.close(forget=not machine.is_set_aside)
    _tell(f"daemon {name} has ended")
    if machine.fault is not None:
        raise machine.fault
    return 1 if machine.has_killed else INTERRUPTED_STATUS if machine.is_set_aside else 0


def _open(
    loop: Any, name: str, endpoint: str, permitted: MachineConfig, claim: NameClaim, grace: float
) -> MachineDaemon:
    """The daemon, bound; ConfigError if its address is taken."""

    def changed(runs: list[DaemonRun]) -> None:
        claim.write(machine.endpoint, runs)

    try:
        machine = MachineDaemon(
            loop,
            name,
            endpoint,
            permitted,
            machine_keys.keyring(name, permitted),
            machines_folder().parent.parent / "runs" / name,
            grace=grace,
            tell=_tell,
            on_change=changed,
            on_idle=loop.stop,
        )
    except (zmq.ZMQError, OSError) as error:
        doing = f"Listening at {endpoint}"
        if error.errno == zmq.EADDRINUSE:
            do = "Take another port with --listen, or end what listens there."
            raise ConfigError(doing, "a free port", _who(endpoint), do) from None
        do = "Name an address of this machine, such as tcp://127.0.0.1:7400."
        raise ConfigError(doing, "an address and a port that can be bound", str(error), do) from None
    return machine


def _who(endpoint: str) -> str:
    """The daemon that listens on a taken port, if it answers."""
    answer = None
    with suppress(ConfigError):
        answer = ask(endpoint, {"type": "machine"}, seconds_max=1.0)
    if answer is None or answer["type"] != "machine":
        return "one in use"
    return f"the daemon {answer['name']!r}, process id {answer['pid']}"


def _tell(line: str) -> None:
    """Print a line for people; standard output may be closed.

    Further lines of it are indented, because parts of it come from other machines.
    """
    with suppress(OSError, ValueError):
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {log_entry(line)[:LINE_LENGTH_MAX]}\n")
        sys.stdout.flush()


LOOK_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 5.0


def join(
    address: str, name: str, islands: int, server_key: str | None, config: Path | None, grace: float = GRACE_SECONDS
) -> int:
    """Offer `islands` until signals end it, or the home expels this machine; returns the exit status.

    ConfigError if an argument is wrong, or no daemon listens at `address`.
    """
    faults: list[Fault] = []
    home, permitted = HomeAddress("", address), machine_file.MachineConfig()
    with collecting(faults):
        cluster_file.checked_name(name, "Reading --name", "for example --name beta")
    with collecting(faults):
        permitted = machine_file.read(config)
    with collecting(faults):
        home = _home(address, server_key)
    if islands < 1:
        faults.append(Fault("Reading --islands", "1 or more", str(islands), "Each island is for one learner."))
    if faults:
        raise ConfigError.of(faults)
    if not cluster_file.is_listening(home.address):
        do = "Start it there: isthmus daemon --name NAME --listen ADDRESS; and look at the way to it."
        raise ConfigError(f"Calling the daemon at {home.address}", "a daemon that listens there", "nobody", do)
    if home.public_key and permitted.pair is None:
        secret = _key_file(name)
        permitted = replace(permitted, pair=read_pair(secret), secret=secret)
    elif not home.public_key:
        ask(home.address, {"type": "machine"}, ANSWER_SECONDS)  # Raises for another version, or no daemon.

    permitted = replace(permitted, error_texts=permitted.error_texts or "local")

    def begin(machine: MachineDaemon) -> None:
        machine.ends_when_expelled = True
        link = machine.neighbours.join(home, islands)
        public = "" if permitted.pair is None else permitted.pair.public
        _follow(machine, link, f"isthmus admit {name} {public}" if public else "", islands)

    return run(name, "tcp://127.0.0.1:*", permitted, begin, grace)


def _home(address: str, server_key: str | None) -> HomeAddress:
    """The home to dial; ConfigError if `address` is not valid, or needs a key and has none."""
    doing = "Reading the address of the home"
    endpoint = cluster_file.checked_address(address, doing, has_keys=True)
    if server_key is not None:
        return HomeAddress("", endpoint, read_public(server_key, Path(), "Reading --server-key"))
    if not is_loopback(endpoint):
        do = "Give --server-key KEY, or the file NAME.pub, of the machine that listens there."
        raise ConfigError(doing, "its public key, because it is another machine", "none", do)
    return HomeAddress("", endpoint)


def _key_file(name: str) -> Path:
    """The machine's secret key in this folder, made if it is missing."""
    path = Path(f"{name}.key").absolute()
    if not path.exists():
        KeyPair.make().write(Path.cwd(), name)
    return path


def _follow(machine: MachineDaemon, link: HomeLink, admit: str, islands: int) -> None:
    """Print a line whenever the state of the link changes: waiting, refused, linked, lost."""
    last, was_up = "", False

    def look() -> None:
        nonlocal last, was_up
        if link.is_hopeless:
            machine.fail(ConfigError.of(link.faults))
            return
        was_up |= link.is_up
        count = f"{islands} island{'' if islands == 1 else 's'}"
        if link.is_up and not link.refused:
            line = f"linked to {link.home.name or link.home.address}, with {count}"
        elif link.refused:
            line = f"not linked: {link.refused}{f'; type there: {admit}' if admit else ''}"
        elif was_up:
            line = f"has lost {link.home.name}, and goes on dialling"
        else:
            line = f"waits for {link.home.address}" + (f"; to be admitted, type there: {admit}" if admit else "")
        if line != last:
            last = line
            machine.tell(line)
        machine.later(LOOK_SECONDS, look)

    machine.later(LOOK_SECONDS, look)
