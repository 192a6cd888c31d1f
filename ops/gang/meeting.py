"""The meeting of one island's processes: the others connect to their leader's door, and then all start jax together.

Decides how long to wait, and names missing processes. The daemons announce the door's address, with a token: only a
process that knows the token is admitted.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import struct
import sys
import time
from contextlib import ExitStack, closing, suppress
from typing import Any, Final, NamedTuple, cast

import jax

from isthmus.ops.gang.mesh_island import Gang
from isthmus.ops.gang.orders import Following, LeaderOrders

MEETING_SECONDS: Final = 60.0
"""As long as a process may take for its first heartbeat: it imports and traces before."""
HELLO_SECONDS: Final = 1.0
"""For a whole hello, which is one packet."""
HELLOS_MAX: Final = 64
"""Connections that may be about to say who they are: more than an island has processes."""
LOOK_SECONDS: Final = 0.05
_HELLO: Final = struct.Struct("!IQQQ")
"""The number of a process, the form for which it comes, and the copy of the island's state that it has."""


class GangError(RuntimeError):
    """An island that fails to form."""


def lead(gang: Gang) -> LeaderOrders:
    """Wait for the others, and start jax with them. GangError, with the names of those missing, if they do not come."""
    others, copies = dict[int, socket.socket](), {0: gang.copy}
    until = time.monotonic() + MEETING_SECONDS
    with closing(Hellos(gang)) as hellos:
        while len(others) < gang.size - 1:
            came = hellos.next(until)
            if came is None:
                for other in others.values():
                    other.close()
                missing = [gang.names[number] for number in range(1, gang.size) if number not in others]
                raise GangError(
                    f"Opening an island of {gang.size} processes: expected all of them within {MEETING_SECONDS:.0f} s, "
                    f"found {1 + len(others)}; {', '.join(missing)} did not come. Look at the log and the machine of "
                    "each."
                )
            if came.number in others:  # It has given up its earlier connection, and connects again.
                others[came.number].close()
            others[came.number], copies[came.number] = came.connection, came.copy
    orders = LeaderOrders([others[number] for number in sorted(others)], [copies[number] for number in sorted(copies)])
    host = gang.door.getsockname()[0]
    coordinator = f"{f'[{host}]' if ':' in host else host}:{_free_port(host, gang.door.family)}"
    orders.give("meet", coordinator)
    _start(coordinator, gang)
    return orders


def join(gang: Gang) -> Following:
    """Connect to the leader, once its address is known, and start jax with it.

    GangError if it is not found, EOFError if it is gone once it has answered.
    """
    begun = time.monotonic()
    while time.monotonic() < begun + MEETING_SECONDS:
        leader_at = gang.find()
        if leader_at is not None:
            with suppress(OSError), ExitStack() as unless_met:
                leader = _connected(leader_at[0], MEETING_SECONDS)
                unless_met.callback(leader.close)
                leader.sendall(leader_at[1].encode() + _HELLO.pack(gang.number, gang.form, *gang.copy))
                following = Following(leader)
                order = following.next(MEETING_SECONDS)
                if order is not None and order[0] == "meet":
                    _await(str(order[1]))
                    _start(str(order[1]), gang)
                    unless_met.pop_all()
                    return following
        time.sleep(LOOK_SECONDS)
    actual = "nowhere" if gang.find() is None else "no answer"
    raise GangError(
        f"Joining the island of {gang.names[0]}: expected its leader within {MEETING_SECONDS:.0f} s, found "
        f"{actual}. Look at the log of {gang.names[0]}."
    )


class AdmittedProcess(NamedTuple):
    """A process that is let in: its connection, its number, and the copy of the island's state that it has."""

    connection: socket.socket
    number: int
    copy: tuple[int, int]


class Hellos:
    """The connections to an island's door that have not shown yet who they are.

    All are read at once, and each has HELLO_SECONDS in all: a slow stranger keeps no process waiting. Of more than
    HELLOS_MAX the oldest goes.
    """

    def __init__(self, gang: Gang) -> None:
        self._gang, self._length = gang, len(gang.token) + _HELLO.size
        self._waiting: dict[socket.socket, tuple[bytearray, float]] = {}
        self._ready = selectors.DefaultSelector()
        gang.door.setblocking(False)
        self._ready.register(gang.door, selectors.EVENT_READ)

    def next(self, until: float) -> AdmittedProcess | None:
        """The next process that is let in; None at `until`, a time of the monotonic clock."""
        while (now := time.monotonic()) < until:
            for other in [other for other, (_, deadline) in self._waiting.items() if deadline <= now]:
                self._drop(other)
            due = min([until, *(deadline for _, deadline in self._waiting.values())])
            for key, _ in self._ready.select(due - now):
                if key.fileobj is self._gang.door:
                    self._accept()
                elif (came := self._read(cast(socket.socket, key.fileobj))) is not None:
                    return came
        return None

    def close(self) -> None:
        """Hang up on all that are left; the door stays."""
        for other in list(self._waiting):
            self._drop(other)
        self._ready.close()

    def _accept(self) -> None:
        with suppress(OSError):  # It is gone again.
            other, _ = self._gang.door.accept()
            if len(self._waiting) >= HELLOS_MAX:
                self._drop(next(iter(self._waiting)))
            other.setblocking(False)
            self._waiting[other] = bytearray(), time.monotonic() + HELLO_SECONDS
            self._ready.register(other, selectors.EVENT_READ)

    def _read(self, other: socket.socket) -> AdmittedProcess | None:
        """The process at the other end, once its hello is whole and right."""
        data, _ = self._waiting[other]
        try:
            part = other.recv(self._length - len(data))
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        data += part
        if part and len(data) < self._length:
            return None
        came = _known(bytes(data), self._gang) if part else None
        if came is None:
            self._drop(other)
            return None
        self._forget(other)
        other.settimeout(None)
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return AdmittedProcess(other, *came)

    def _drop(self, other: socket.socket) -> None:
        self._forget(other)
        other.close()

    def _forget(self, other: socket.socket) -> None:
        self._ready.unregister(other)
        del self._waiting[other]


def _known(data: bytes, gang: Gang) -> tuple[int, tuple[int, int]] | None:
    """The number of a process, and its copy, by its hello; None for an unknown process, and for one of another form."""
    number, form, life, copy = _HELLO.unpack(data[-_HELLO.size :])
    is_known = hmac.compare_digest(data[: -_HELLO.size], gang.token.encode())
    return (number, (life, copy)) if is_known and form == gang.form and 0 < number < gang.size else None


def _connected(endpoint: str, seconds_max: float) -> socket.socket:
    """A connection to `HOST:PORT`, where HOST may be an address of IPv6 in brackets; OSError if there is none."""
    host, _, port = endpoint.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=seconds_max)


def _free_port(host: str, family: int) -> int:
    """A port that is free now; jax does not choose one itself."""
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _await(coordinator: str) -> None:
    """Return once jax's coordinator listens: a process that connects earlier waits a second before it tries again.

    GangError if it does not listen within MEETING_SECONDS.
    """
    until = time.monotonic() + MEETING_SECONDS
    while time.monotonic() < until:
        with suppress(OSError):
            _connected(coordinator, HELLO_SECONDS).close()
            return
        time.sleep(LOOK_SECONDS / 5)
    raise GangError(f"Joining an island: expected jax's coordinator at {coordinator}, found no answer there.")


def _start(coordinator: str, gang: Gang) -> None:
    """Make the devices of all processes known to jax."""
    config: Any = jax.config
    config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator,
        gang.size,
        gang.number,
        # Under Slurm or MPI jax would otherwise take a process for one of a GPU each, and see no other.
        cluster_detection_method="deactivate",
        initialization_timeout=round(MEETING_SECONDS),
        coordinator_bind_address=coordinator,
    )
    jax.devices()
    # Only process 0 writes what it compiles into the cache, but each process has keys of its own there: the others
    # would compile everything again in every life. That number is used for nothing else once devices are there.
    distributed: Any = sys.modules["jax._src.distributed"]
    distributed.global_state.process_id = 0
