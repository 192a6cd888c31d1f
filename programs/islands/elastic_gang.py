"""The view of the others that the host of an elastic island's process has, and its reports about their forms.

Daemons announce to all hosts of the run in which form each island trains; the leader's host reports in its heartbeat in
which it does, so that the home knows the result. Announcements arrive in the loop's thread; a node's thread reads them.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import msgspec

from isthmus.ops.elastic import copies
from isthmus.ops.elastic.copies import Place
from isthmus.programs.islands.gang import TOKEN_BYTES
from isthmus.programs.islands.nursery import Nursery, Work
from isthmus.runtime.ids import Member, follower, gang_number, leader
from isthmus.runtime.supervision.messages import Form, Formed


class _OfNumbers(NamedTuple):
    """A form, as the processes of its island know each other."""

    number: int
    members: tuple[tuple[int, int], ...]


@final
class ElasticHost:
    """The host side of one of the at most `size` processes of an island, in its life as `member`.

    `workers` is set once this host has begun its nursery. OSError if the leader cannot listen at `address`.
    """

    def __init__(self, member: Member, size: int, address: str) -> None:
        first = leader(member.replica)
        self.number, self.incarnation = gang_number(member.replica), member.incarnation
        self.names = (str(first), *(str(follower(first, number)) for number in range(1, size)))
        self.files = copies.open_files()
        self.token = secrets.token_hex(TOKEN_BYTES)
        self.door = socket.create_server((address, 0), backlog=size) if self.number == 0 else None
        self.workers: Nursery | None = None
        self._leader = first
        self._told = threading.Event()
        self._form: _OfNumbers | None = None
        self._found: dict[int, tuple[str, str]] = {}
        self._formed = Formed()
        self._is_forming = False

    def begin_nursery(self, work: Work) -> None:
        """Start the nursery, which forks workers, while this process has no threads."""
        self.workers = Nursery(self.names[self.number], work)

    def place(self, devices: int | None, kinds: tuple[str, ...]) -> Place:
        """The resources that a worker gets from this host."""
        return Place(self.files, self.door, self.token, devices, kinds)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The leader's endpoint and token; empty for a follower."""
        if self.door is None:
            return ()
        host, port = self.door.getsockname()[:2]
        return f"{host}:{port}", self.token

    # -- in the loop's thread ------------------------------------------------------------------------------------------

    def hear(self, rows: Sequence[Sequence[Any]], forms: Sequence[Form]) -> None:
        """Take in a roster: rows of (replica, incarnation, endpoints, machine), and the forms of elastic islands."""
        for name, incarnation, endpoints, _ in rows:
            if name == self.names[0] and len(endpoints) == 2:
                self._found = {incarnation: (endpoints[0], endpoints[1])}
        for form in forms:
            if form.leader == self._leader and (self._form is None or form.number > self._form.number):
                members = tuple((gang_number(each.replica), each.incarnation) for each in form.members)
                self._form = _OfNumbers(form.number, members)
        self._told.set()

    @property
    def said(self) -> Formed:
        """This host's result of the newest form."""
        return self._formed

    @property
    def is_forming(self) -> bool:
        """Whether computation pauses, because processes form an island."""
        return self._is_forming

    def cpu_seconds(self) -> float:
        """CPU seconds of the processes that compute for this host."""
        return 0.0 if self.workers is None else self.workers.cpu_seconds()

    # -- in a node's thread --------------------------------------------------------------------------------------------

    def form(self) -> _OfNumbers | None:
        return self._form

    def find(self, incarnation: int) -> tuple[str, str] | None:
        return self._found.get(incarnation)

    def wait(self, seconds: float) -> None:
        self._told.wait(seconds)
        self._told.clear()

    def forming(self, broken: int) -> None:
        self._is_forming = True
        self._formed = msgspec.structs.replace(self._formed, broken=broken)  # The last report may be unheard yet.

    def formed(self, number: int, processes: int, stall: int, again: int) -> None:
        self._formed = Formed(number=number, processes=processes, stall_ns=stall, again=again)
        self._is_forming = False
