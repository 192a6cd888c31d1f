"""The numbers of the islands that processes of a user's script have on a machine, where no process claims its own.

A script's process would hand a claim on to what it starts, so the daemon that starts it says which island it has. It
has the same one in every life, also under the next daemon.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from isthmus.runtime.ids import Replica
from isthmus.runtime.system.files import read_text, write_json

NOTE: Final = "islands.json"
"""In the run folder: learner -> number, of those that have another one than their slot says."""


@final
class IslandNumbers:
    """Those of the learners of a run, on a machine with `count` islands.

    A run on one machine has slots from 0 on, and each the island of that number. Elsewhere slots of several machines
    take turns, and a slot whose number another one has gets the first that is free.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._path, self._count = folder / NOTE, max(count, 1)
        self._noted = dict[str, int]()
        with suppress(OSError, ValueError):
            self._noted = {str(name): int(number) for name, number in json.loads(read_text(self._path)).items()}
        self._given = dict(self._noted)

    def of(self, learner: Replica) -> int:
        """The number of a learner's island, from 0 on; where there are more learners than islands several share one."""
        name, own = str(learner), learner.slot % self._count
        if name not in self._given:
            taken = set(self._given.values())
            free = next((number for number in (own, *range(self._count)) if number not in taken), own)
            self._given[name] = free
            if free != own or self._noted:
                self._noted = dict(self._given)
                with suppress(OSError):  # The next daemon may then give two the same.
                    write_json(self._path, self._noted)
        return self._given[name]
