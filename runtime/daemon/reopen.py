"""Taking back that a run is over, for one that is to go on all the same, here or with another machine as its home: its
next daemon takes over as after a death.

Lives and their numbers stay, so that no number is given twice. Who was given up is tried again; who is to have no more
lives is retired.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.runtime.daemon.home_daemon import JOURNAL
from isthmus.runtime.daemon.ledger import FILE, Ledger
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home.events import Journal

LEFT_OUT: Final = "left out"
"""How a replica was retired that the run goes on without."""


def reopen(folder: Path, is_left_out: Callable[[Replica], bool]) -> None:
    """Note in the ledger of a run that it goes on, without some replicas. Nobody else may have it. OSError or
    sqlite3.Error where that cannot be noted."""
    with closing(Ledger(folder, was_there=True)) as ledger:
        retired = tuple((str(each.replica), LEFT_OUT) for each in ledger.numbers() if is_left_out(each.replica))
        _go_on(ledger, folder, is_stopping=False, retired=retired)


def move(folder: Path, former: Path | None) -> None:
    """Make the ledger of a run, a copy perhaps, that of a home on this machine, whose hosts of that run the ledger in
    the folder `former` has, if there are any. Nobody else may have it. One that was to stop still is, as its hosts were
    told. OSError or sqlite3.Error where that cannot be noted."""
    with closing(Ledger(folder, was_there=True)) as ledger:
        ledger.move(former)
        _go_on(ledger, folder)


def journal_of(folder: Path) -> Journal | None:
    """What the last daemon of a run has noted; None where nothing is there, or it cannot be read."""
    try:
        with closing(sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)) as database:
            row = database.execute("select value from notes where name = ?", (JOURNAL,)).fetchone()
        return None if row is None else msgspec.msgpack.decode(bytes(row[0]), type=Journal)
    except (sqlite3.Error, msgspec.DecodeError):
        return None


def _go_on(ledger: Ledger, folder: Path, **changes: Any) -> None:
    noted = ledger.noted(JOURNAL)
    journal = Journal() if noted is None else msgspec.msgpack.decode(noted, type=Journal)
    going = msgspec.structs.replace(journal, outcome="running", failure=None, **changes)
    if going != journal:
        ledger.note(JOURNAL, msgspec.msgpack.encode(going))
        if not ledger.settle():
            raise OSError(f"the ledger in {folder} cannot be written")
