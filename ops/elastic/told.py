"""What a host tells the process that computes for it, and how that sees the form of the island that it is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

Basis: TypeAlias = tuple[int, int] | None
"""The name of the copy from which a leader goes on; NOTHING for none, None for the newest that anybody has."""


class Told(NamedTuple):
    """What a host tells the process that computes for it: its `number` in form `form`, the `names` of all in it, the
    leader's life `incarnation`, where that is to be found (of others), and from which copy it goes on (of it)."""

    number: int
    form: int
    names: tuple[str, ...]
    incarnation: int
    there: tuple[str, str] | None = None
    basis: Basis = None


class Place(NamedTuple):
    """What a worker has from its host: the `files` of copies, the leader's `door` and `token`, the devices of each
    process and the kinds that they may have."""

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
