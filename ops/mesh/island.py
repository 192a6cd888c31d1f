"""What a host was placed on, as its context has it: what ops may know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from socket import socket
from typing import Any, Protocol


class Gang(Protocol):
    """The processes that make up one island, of which number 0 leads."""

    @property
    def number(self) -> int:
        """That of this process."""

    @property
    def names(self) -> Sequence[str]:
        """What each of them is called, by number."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def door(self) -> socket:
        """Where the leader listens for the others; of the leader alone."""

    @property
    def token(self) -> str:
        """What whoever comes to the door has to know; of the leader alone."""

    @property
    def form(self) -> int:
        """The number of the form in which they come together; 0 of processes that live and end together."""

    @property
    def copy(self) -> tuple[int, int]:
        """The name of the newest copy of the island's state that this process has, (0, 0) for none."""

    def find(self) -> tuple[str, str] | None:
        """Where the leader of this very life is, as HOST:PORT, and its token; None as long as that is not known."""


class Form(Protocol):
    """Which processes of an island train together from now on: those that are there, or as many of them as divide its
    batch. Forms are numbered upwards."""

    @property
    def number(self) -> int: ...

    @property
    def members(self) -> Sequence[tuple[int, int]]:
        """The (number, incarnation) of each process, in order; the first is that of the leader."""


class Workers(Protocol):
    """What begins the processes that compute for this host, one after the other: each ends the one before."""

    def start(self, told: Mapping[str, Any]) -> Any:
        """Begin one, and tell it this; the connection with it."""

    def end(self) -> None:
        """End it, if there is one."""


class ElasticGang(Protocol):
    """The processes of an island that goes on without some of them, as the host of one of these has it."""

    @property
    def number(self) -> int:
        """That of this process; 0 leads."""

    @property
    def names(self) -> Sequence[str]:
        """What each of them is called, by number."""

    @property
    def incarnation(self) -> int:
        """The life of this process."""

    @property
    def workers(self) -> Workers | None:
        """None for processes that live and end together."""

    def form(self) -> Form | None:
        """The newest form that this host was told; None as long as there is none."""

    def find(self, incarnation: int) -> tuple[str, str] | None:
        """Where this life of the leader is, as HOST:PORT, and its token; None as long as that is not known."""

    def wait(self, seconds: float) -> None:
        """Return when there may be another form, after so many seconds at most."""

    def forming(self, broken: int) -> None:
        """Nothing is computed: the form of this number is no more; 0 where there was none yet."""

    def formed(self, number: int, processes: int, stall: int, again: int) -> None:
        """So many train again: nothing was computed for `stall` nanoseconds, and `again` steps were made once more."""


class Island(Protocol):
    """The devices that a learner may use."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names that its devices may have, in any case of letters; none for any."""

    @property
    def devices(self) -> int | None:
        """How many there are; None for all that this process sees."""

    @property
    def begin(self) -> int:
        """The number of the first, among those of this process."""

    @property
    def refusal(self) -> str:
        """Why there are none to be had; empty where there are."""

    @property
    def gang(self) -> Gang | None:
        """Of an island of several processes: this and the others; `devices` are those of each."""
