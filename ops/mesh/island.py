"""What a host was placed on, as its context has it: what ops may know of it."""

from __future__ import annotations

from collections.abc import Sequence
from socket import socket
from typing import Protocol


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

    def find(self) -> tuple[str, str] | None:
        """Where the leader of this very life is, as HOST:PORT, and its token; None as long as that is not known."""


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
