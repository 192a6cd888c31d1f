"""The interface of a host's island in its context, as far as ops use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from socket import socket
from typing import Any, Protocol


class Gang(Protocol):
    """The processes that make up one island, of which number 0 leads."""

    @property
    def number(self) -> int:
        """The number of this process."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all processes, by number."""

    @property
    def size(self) -> int:
        """The number of processes."""

    @property
    def door(self) -> socket:
        """The socket on which the leader listens for the others; of the leader alone."""

    @property
    def token(self) -> str:
        """The token that the others must show at the door; of the leader alone."""

    @property
    def form(self) -> int:
        """The number of the form that they make up; 0 for processes that live and end together."""

    @property
    def copy(self) -> tuple[int, int]:
        """The name of the newest copy of the island's state that this process has, (0, 0) for none."""

    def find(self) -> tuple[str, str] | None:
        """Address (HOST:PORT) and token of the leader of this very life; None as long as they are not known."""


class IslandForm(Protocol):
    """The processes of an island that train together from now on: those present, or as many as divide its batch.

    Forms are numbered upwards.
    """

    @property
    def number(self) -> int: ...

    @property
    def members(self) -> Sequence[tuple[int, int]]:
        """The (number, incarnation) of each process, in order; the first is that of the leader."""


class Workers(Protocol):
    """Starts the processes that compute for this host, one after the other: each start ends the one before."""

    def start(self, spec: Mapping[str, Any]) -> Any:
        """Start a worker with these instructions; returns the connection with it."""

    def end(self) -> None:
        """End the worker, if there is one."""


class ElasticGang(Protocol):
    """The processes of an island that continues without some of them, as seen by the host of one of these."""

    @property
    def number(self) -> int:
        """The number of this process; 0 leads."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all processes, by number."""

    @property
    def incarnation(self) -> int:
        """The life of this process."""

    @property
    def workers(self) -> Workers | None:
        """None for processes that live and end together."""

    def form(self) -> IslandForm | None:
        """The newest form that this host has received; None as long as there is none."""

    def find(self, incarnation: int) -> tuple[str, str] | None:
        """Address (HOST:PORT) and token of this life of the leader; None as long as they are not known."""

    def wait(self, seconds: float) -> None:
        """Return when there may be another form, after at most `seconds`."""

    def forming(self, broken: int) -> None:
        """Report that the form of this number has failed, and nothing is computed; 0 where there was none yet."""

    def formed(self, number: int, processes: int, stall: int, again: int) -> None:
        """Report that so many train again: it stalled for `stall` nanoseconds, and `again` steps were repeated."""


class LearnerDevices(Protocol):
    """The devices that a learner may use."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The allowed names of its devices, ignoring case; none for any."""

    @property
    def devices(self) -> int | None:
        """The number of devices; None for all that this process sees."""

    @property
    def begin(self) -> int:
        """The index of the first, among those of this process."""

    @property
    def refusal(self) -> str:
        """Why there are none available; empty where there are."""

    @property
    def size(self) -> int:
        """The number of processes whose devices jax takes for those of one island; `devices` are those of each."""
