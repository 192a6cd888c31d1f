"""A host's instructions to the process that computes for it, and that process's view of its form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

Basis: TypeAlias = tuple[int, int] | None
"""The name of the copy from which a leader continues; NOTHING for none, None for the newest of any process."""


class Told(NamedTuple):
    """A host's instructions to its worker.

    Its `number` in form `form`, the `names` of all in it, the leader's life `incarnation`, its address (for others),
    and the copy from which it continues (for the leader).
    """

    number: int
    form: int
    names: tuple[str, ...]
    incarnation: int
    there: tuple[str, str] | None = None
    basis: Basis = None


class Place(NamedTuple):
    """A worker's resources from its host.

    The `files` of copies, the leader's `door` and `token`, the devices of each process and their allowed kinds.
    """

    files: tuple[int, ...]
    door: Any
    token: str
    devices: int | None
    kinds: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class FormedGang:
    """One form of an island, as a gang; and itself the island that it makes up."""

    told: Told
    place: Place
    copy: tuple[int, int]
    begin: int = 0
    refusal: str = ""

    @property
    def number(self) -> int:
        return self.told.number

    @property
    def names(self) -> Sequence[str]:
        return self.told.names

    @property
    def size(self) -> int:
        return len(self.told.names)

    @property
    def door(self) -> Any:
        return self.place.door

    @property
    def token(self) -> str:
        return self.place.token

    @property
    def form(self) -> int:
        return self.told.form

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.place.kinds

    @property
    def devices(self) -> int | None:
        return self.place.devices

    @property
    def gang(self) -> FormedGang:
        return self

    def find(self) -> tuple[str, str] | None:
        return self.told.there
