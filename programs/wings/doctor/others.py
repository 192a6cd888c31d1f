"""Facts of the way to other machines: names, ports of daemons and hosts both ways, clocks; each within some seconds.

A trial opens and dials ports, sends nothing through them, and leaves nothing: the daemon at the other end opens one,
and, for an operator, dials one of this machine (`machine.trial_ports`).
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.placement import Machine
from isthmus.programs.engine.machine.client import ANSWER_SECONDS, DaemonClient
from isthmus.programs.engine.machine.links import HomeAddress
from isthmus.programs.wings.doctor.checks import PeerAnswer, PeerFacts, TriedConnection
from isthmus.programs.wings.doctor.trial_ports import DIAL, OPEN
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system import addresses
from isthmus.runtime.wire.control_client import check_greeting
from isthmus.runtime.wire.control_messages import Message

DIAL_SECONDS_MAX: Final = 3.0
NAME_SECONDS_MAX: Final = 5.0


def ipv6_refusal() -> str:
    """Why this machine cannot use IPv6; empty if it can."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as server:
            server.bind(("::1", 0))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def resolved(host: str) -> tuple[tuple[str, ...], str]:
    """The addresses of a host name and "", or () and the reason, after NAME_SECONDS_MAX at most."""

    def look() -> tuple[str, ...]:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(each[4][0]) for each in found))

    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(look).result(NAME_SECONDS_MAX), ""
    except TimeoutError:
        return (), f"{host!r} not resolved within {NAME_SECONDS_MAX:.0f} s"
    except OSError as error:
        return (), f"{host!r}: {error.strerror or error}"
    finally:
        pool.shutdown(wait=False)


def way_to(host: str, port: int) -> TriedConnection:
    """A TCP connection to a port, made and closed again, within DIAL_SECONDS_MAX."""
    endpoint, began = f"tcp://{addresses.text_of(host, port)}", time.monotonic()
    try:
        addresses.connect(endpoint, DIAL_SECONDS_MAX).close()
    except ConnectionRefusedError:
        return TriedConnection(endpoint, is_refused=True, refusal="nothing listens there")
    except TimeoutError:
        return TriedConnection(endpoint, refusal=f"no answer within {DIAL_SECONDS_MAX:.0f} s")
    except OSError as error:
        return TriedConnection(endpoint, refusal=error.strerror or str(error))
    return TriedConnection(endpoint, seconds=time.monotonic() - began)


def is_own(address: str) -> bool:
    """Whether an IP address is one of this machine: the kernel lets no other be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((address, 0))
        return True
    return False


def local_ports(path: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> tuple[int, int]:
    """The first and the last port that the kernel gives to sockets which ask for any."""
    try:
        low, high = map(int, path.read_text().split())
    except (OSError, ValueError):
        return 32768, 60999  # The kernel's default.
    return low, high


def inviting(home: HomeAddress) -> PeerFacts:
    """The facts of the home of an invitation: its address, and whether a daemon greets there, which it does not at the
    end of a tunnel to nowhere; no more, since the key in it is for joining."""
    host, port = addresses.host_and_port(home.address)
    found, unresolved = resolved(host)
    facts = PeerFacts(home.name or "home", home.address, unresolved)
    if unresolved:
        return facts
    facts = replace(facts, way=way_to(host, int(port)), is_here=all(map(is_own, found)))
    if facts.way is None or facts.way.seconds is None:
        return facts
    try:
        check_greeting(home.address, DIAL_SECONDS_MAX)
    except OSError as error:
        do = "Start the daemon there. If a tunnel leads there, its far end is the address at which the daemon listens."
        return replace(facts, fault=(f"a daemon behind {home.address}", str(error), do))
    return facts


def peer(cluster: Cluster, machine: Machine, own: Machine | None) -> PeerFacts:
    """The facts of a machine that has an address; `own` is this machine in the cluster, None if it is not in it."""
    host, port = addresses.host_and_port(machine.endpoint)
    found, unresolved = resolved(host)
    facts = PeerFacts(machine.name, machine.endpoint, unresolved)
    if unresolved:
        return facts
    facts = replace(facts, way=way_to(host, int(port)), is_here=all(map(is_own, found)))
    if facts.way is None or facts.way.seconds is None:
        return facts
    daemon, before = DaemonClient.at(cluster, machine), time.time_ns()
    try:
        answer, after = _answer(daemon, {"type": OPEN}), time.time_ns()
        skew, there = int(answer["time_ns"]) - (before + after) // 2, way_to(host, int(answer["port"]))
        if answer["name"] != machine.name:
            do = f"Write name = {answer['name']!r} in the cluster file, or the address of {machine.name!r}."
            return replace(facts, fault=(f"the daemon {machine.name!r}", f"the daemon {answer['name']!r}", do))
    except ConfigError as error:
        return replace(facts, fault=error.faults[0][1:])
    except (LookupError, TypeError, ValueError) as error:
        fault = f"an answer of the daemon {machine.name!r}", f"another one: {error!r}", "Use one version everywhere."
        return replace(facts, fault=fault)
    is_reached = not facts.is_here and own is not None and own.address is not None
    back = _dialled(daemon, str(own.address)) if is_reached and own is not None else None
    return replace(facts, answer=PeerAnswer(skew / 1e9, (after - before) / 2e9, there, back))


def _answer(daemon: DaemonClient, message: Message) -> Message:
    """The daemon's answer; ConfigError for a refusal, or if what listens there gives none."""
    answer = daemon.ask(message, ANSWER_SECONDS)
    if answer is None:
        do = f"Look at what listens at {daemon.address}; a firewall may answer in its place."
        found = f"a connection, but no answer within {ANSWER_SECONDS:.0f} s"
        raise ConfigError("Calling a daemon", f"the daemon {daemon.name!r} at {daemon.address}", found, do)
    if answer["type"] == "refused":
        raise ConfigError.of([Fault(*fault) for fault in answer["faults"]])
    return answer


def _dialled(daemon: DaemonClient, own_address: str) -> TriedConnection | None:
    """The way from a daemon to a port that is opened here; None if it does not dial for this key, or not from here."""
    host, _ = addresses.host_and_port(own_address)
    try:
        with addresses.serve(host if addresses.is_literal(host) else "", 0, 1) as server:
            endpoint = f"tcp://{addresses.text_of(host, server.getsockname()[1])}"
            answer = _answer(daemon, {"type": DIAL, "endpoint": endpoint})
            taken = answer["seconds"]
            return TriedConnection(endpoint, None if taken is None else float(taken), refusal=str(answer["refusal"]))
    except (ConfigError, OSError, LookupError, TypeError, ValueError):
        return None
