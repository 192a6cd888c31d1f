"""Reopens a run that is over, to continue it here or with another machine as its home.

Its next daemon takes over as after a death. Lives and their numbers stay, so that no number is given twice. Replicas
that were given up are tried again; those that get no more lives are retired.
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
"""The reason recorded for a retired replica that the run goes on without."""


def reopen(folder: Path, is_left_out: Callable[[Replica], bool]) -> None:
    """Record in the ledger of a run that it goes on, without some replicas.

    No other process may have the ledger open. OSError or sqlite3.Error where that cannot be recorded.
    """
    with closing(Ledger(folder, was_there=True)) as ledger:
        retired = tuple((str(each.replica), LEFT_OUT) for each in ledger.numbers() if is_left_out(each.replica))
        _go_on(ledger, folder, is_stopping=False, retired=retired)


def move(folder: Path, former: Path | None) -> None:
    """Turn the ledger of a run, perhaps a copy, into that of a home on this machine.

    The ledger in the folder `former` has this machine's hosts of the run, if there are any. No other process may have
    the ledger open. A run that was to stop still is, because its hosts have been told. OSError or sqlite3.Error where
    that cannot be recorded.
    """
    with closing(Ledger(folder, was_there=True)) as ledger:
        ledger.move(former)
        _go_on(ledger, folder)


def journal_of(folder: Path) -> Journal | None:
    """The journal of the last daemon of a run; None where there is none, or it cannot be read."""
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
