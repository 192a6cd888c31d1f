"""Sends the copy of a learner's local leaves, which its host has on its disk, to the run's home, part by part.

Decides nothing but what a part is: whose copy is sent, when and how fast, the home asks. The learner is not asked at
all: its leaves are in the file already (`recovery.LocalCopies`), so no step waits for what is read and sent here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, final

import numpy as np

from isthmus.ops.exchange.messages import CopyPart, WantedPart
from isthmus.ops.recovery.local_files import copy_path

PART_BYTES: Final = 16 << 20
"""Bytes of a part: half of what may wait of a copy that is written."""


@final
class CopySender:
    """Requests in, parts out; of the file as it was at the first request for it, whatever has replaced it since.

    Of a copy that is being sent all of it is in memory, until the home asks for another one.
    """

    outputs: ClassVar[tuple[str, ...]] = ("part",)
    collects: ClassVar[tuple[str, ...]] = ("wanted",)
    schemas: ClassVar[dict[str, Any]] = {"wanted": WantedPart}

    def __init__(self) -> None:
        self._number, self._data = 0, b""

    def open(self, context: Any) -> None:
        """Find the file."""
        self._context = context
        self._slot, self._incarnation = context.member.replica.slot, context.member.incarnation

    def __call__(self, wanted: Mapping[Any, WantedPart] | None = None) -> list[tuple[str, CopyPart]] | None:
        """The part that is asked for; none, and nothing in memory, where another learner is asked."""
        mine = [each for each in (wanted or {}).values() if (each["slot"], each["incarnation"]) == self._own]
        if not mine:
            had, self._number, self._data = bool(self._data), 0, b""
            return [("part", self._part(0, 0, b""))] if had else None  # In place of the last one, which Latest keeps.
        asked = max(mine, key=lambda each: (each["number"], each["at"]))
        if asked["number"] != self._number:
            self._number, self._data = asked["number"], self._read()
        at = min(asked["at"], len(self._data))
        return [("part", self._part(self._number, at, self._data[at : at + PART_BYTES]))]

    @property
    def _own(self) -> tuple[int, int]:
        return self._slot, self._incarnation

    def _read(self) -> bytes:
        """The copy; nothing where there is none."""
        if self._context.folder is None:
            return b""
        try:
            data: bytes = self._context.disk.read(copy_path(self._context.folder, self._slot))
        except OSError:
            return b""
        return data

    def _part(self, number: int, at: int, data: bytes) -> CopyPart:
        return CopyPart(
            slot=self._slot,
            incarnation=self._incarnation,
            number=number,
            at=at,
            size=len(self._data),
            data=np.frombuffer(data, np.uint8),
        )
