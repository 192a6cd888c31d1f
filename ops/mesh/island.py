"""What a host was placed on, as its context has it: what ops may know of it."""

from __future__ import annotations

from typing import Protocol


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
