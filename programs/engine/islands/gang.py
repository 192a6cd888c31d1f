"""A host's part in an island of several processes that live and end together: where its leader is.

Decides what a host knows of the others, from the rosters that daemons send; it forms no island itself.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from typing import Any, final

from isthmus.runtime.host.contract import IslandDevices, IslandProcesses
from isthmus.runtime.ids import Member, follower, gang_number, leader
from isthmus.runtime.supervision.messages import Form
from isthmus.runtime.system import addresses

TOKEN_BYTES = 16


@final
class GangOfProcesses(IslandProcesses):
    """The host side of one of the `size` processes of an island, in its life as `member`.

    The leader listens on an address of its machine, and reports it to its daemon, with a secret token. Daemons announce
    both to all hosts of the run, with the live members; a follower goes by the row of its own life.
    """

    def __init__(self, member: Member, size: int, address: str) -> None:
        """`address` is that of this machine. OSError if the leader cannot listen there."""
        first = leader(member.replica)
        self.number, self.size = gang_number(member.replica), size
        self.names = (str(first), *(str(follower(first, number)) for number in range(1, size)))
        self.token = secrets.token_hex(TOKEN_BYTES)
        self.form, self.copy = 0, (0, 0)
        self._life = str(first), member.incarnation
        self._leader_at: tuple[str, str] | None = None
        self._door = addresses.serve(address, 0, size) if self.number == 0 else None

    def kind(self, island: IslandDevices) -> Any:
        from isthmus.ops.island.gang_kind import GangKind

        return GangKind(self, island)

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
        return addresses.text_of(*self._door.getsockname()[:2]), self.token

    def on_roster(self, rows: Sequence[Sequence[Any]], forms: Sequence[Form]) -> None:
        """Take in a roster: rows of (replica, incarnation, endpoints, machine)."""
        del forms  # They live and end together.
        for name, incarnation, endpoints, _ in rows:
            if (name, incarnation) == self._life and len(endpoints) == 2:
                self._leader_at = endpoints[0], endpoints[1]

    def find(self) -> tuple[str, str] | None:
        """The endpoint of this life's leader, and its token; None until a roster has them."""
        return self._leader_at
