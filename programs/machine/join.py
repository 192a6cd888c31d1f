"""`isthmus join`: a machine that offers its islands to the runs of another, for as long as this process lives.

It only dials out, so it may be behind NAT. Off loopback it has a key, which is made if there is none, and waits until
the other end has admitted it; it prints the command to type there. Ctrl-C takes it away again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from isthmus.programs.cluster import addresses, machine_file
from isthmus.programs.cluster import names as machine_name
from isthmus.programs.machine import serve
from isthmus.programs.machine.daemon import MachineDaemon
from isthmus.programs.machine.home_link import Home, Link
from isthmus.programs.request.settings import collecting
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.security_keys import KeyPair, is_loopback, read_pair, read_public

LOOK_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 5.0


def join(address: str, name: str, islands: int, server_key: str | None, config: Path | None) -> int:
    """Offer `islands` until signals end it, or the home expels this machine; returns the exit status.

    ConfigError if an argument is wrong, or no daemon listens at `address`.
    """
    faults: list[Fault] = []
    home, permitted = Home("", address), machine_file.MachineConfig()
    with collecting(faults):
        machine_name.checked(name, "Reading --name", "for example --name beta")
    with collecting(faults):
        permitted = machine_file.read(config)
    with collecting(faults):
        home = _home(address, server_key)
    if islands < 1:
        faults.append(Fault("Reading --islands", "1 or more", str(islands), "Each island is for one learner."))
    if faults:
        raise ConfigError.of(faults)
    if not addresses.is_listening(home.address):
        do = "Start it there: isthmus daemon --name NAME --listen ADDRESS; and look at the way to it."
        raise ConfigError(f"Calling the daemon at {home.address}", "a daemon that listens there", "nobody", do)
    if home.public_key and permitted.pair is None:
        secret = _key_file(name)
        permitted = machine_file.MachineConfig(permitted.modules, read_pair(secret), permitted.admitted, secret)
    elif not home.public_key:
        ask(home.address, {"type": "machine"}, ANSWER_SECONDS)  # Raises for another version, or no daemon.

    def begin(machine: MachineDaemon) -> None:
        machine.ends_when_expelled = True
        link = machine.neighbours.join(home, islands)
        public = "" if permitted.pair is None else permitted.pair.public
        _follow(machine, link, f"isthmus admit {name} {public}" if public else "", islands)

    return serve.run(name, "tcp://127.0.0.1:*", permitted, begin)


def _home(address: str, server_key: str | None) -> Home:
    """The home to dial; ConfigError if `address` is not valid, or needs a key and has none."""
    doing = "Reading the address of the home"
    endpoint = addresses.checked(address, doing, has_keys=True)
    if server_key is not None:
        return Home("", endpoint, read_public(server_key, Path(), "Reading --server-key"))
    if not is_loopback(endpoint):
        do = "Give --server-key KEY, or the file NAME.pub, of the machine that listens there."
        raise ConfigError(doing, "its public key, because it is another machine", "none", do)
    return Home("", endpoint)


def _key_file(name: str) -> Path:
    """The machine's secret key in this folder, made if it is missing."""
    path = Path(f"{name}.key").absolute()
    if not path.exists():
        KeyPair.make().write(Path.cwd(), name)
    return path


def _follow(machine: MachineDaemon, link: Link, admit: str, islands: int) -> None:
    """Print a line whenever the state of the link changes: waiting, refused, linked, lost."""
    told, was_up = "", False

    def look() -> None:
        nonlocal told, was_up
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
        if line != told:
            told = line
            machine.tell(line)
        machine.later(LOOK_SECONDS, look)

    machine.later(LOOK_SECONDS, look)
