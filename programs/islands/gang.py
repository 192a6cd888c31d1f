"""The view of the others that a process of a shared island has: the address of their leader.

The leader listens on an address of its machine, and reports it to its daemon, with a secret token. Daemons announce
both to all hosts of the run, with the live members; a follower goes by the row of its own life.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from typing import Any, final

from isthmus.runtime.ids import Member, follower, gang_number, leader
from isthmus.runtime.supervision.messages import Form

TOKEN_BYTES = 16


@final
class GangOfProcesses:
    """The host side of one of the `size` processes of an island, in its life as `member`."""

    def __init__(self, member: Member, size: int, address: str) -> None:
        """`address` is that of this machine. OSError if the leader cannot listen there."""
        first = leader(member.replica)
        self.number, self.size = gang_number(member.replica), size
        self.names = (str(first), *(str(follower(first, number)) for number in range(1, size)))
        self.token = secrets.token_hex(TOKEN_BYTES)
        self.form, self.copy = 0, (0, 0)
        self._life = str(first), member.incarnation
        self._found: tuple[str, str] | None = None
        self._door = socket.create_server((address, 0), backlog=size) if self.number == 0 else None

    @property
    def door(self) -> socket.socket:
        """The socket at which the leader listens."""
        assert self._door is not None
        return self._door

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The leader's endpoint and token; empty for a follower."""
        if self._door is None:
            return ()
        host, port = self._door.getsockname()[:2]
        return f"{host}:{port}", self.token

    def hear(self, rows: Sequence[Sequence[Any]], forms: Sequence[Form]) -> None:
        """Take in a roster: rows of (replica, incarnation, endpoints, machine)."""
        del forms  # They live and end together.
        for name, incarnation, endpoints, _ in rows:
            if (name, incarnation) == self._life and len(endpoints) == 2:
                self._found = endpoints[0], endpoints[1]

    def find(self) -> tuple[str, str] | None:
        """The endpoint of this life's leader, and its token; None until a roster has them."""
        return self._found
