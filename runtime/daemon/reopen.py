"""Taking back that a run is over, for one that is to go on all the same: its next daemon takes over as after a death.

Lives and their numbers stay, so that no number is given twice. Who was given up is tried again; who is to have no more
lives is retired.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from isthmus.runtime.daemon.home_daemon import JOURNAL
from isthmus.runtime.daemon.ledger import Ledger
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home.events import Journal

LEFT_OUT: Final = "left out"
"""How a replica was retired that the run goes on without."""


def reopen(folder: Path, is_left_out: Callable[[Replica], bool]) -> None:
    """Note in the ledger of a run that it goes on, without some replicas. Nobody else may have it. OSError or
    sqlite3.Error where that cannot be noted."""
    with closing(Ledger(folder, was_there=True)) as ledger:
        noted = ledger.noted(JOURNAL)
        if noted is None:
            return
        journal = msgspec.msgpack.decode(noted, type=Journal)
        retired = tuple((str(each.replica), LEFT_OUT) for each in ledger.numbers() if is_left_out(each.replica))
        going = msgspec.structs.replace(journal, outcome="running", failure=None, is_stopping=False, retired=retired)
        if going != journal:
            ledger.note(JOURNAL, msgspec.msgpack.encode(going))
            if not ledger.settle():
                raise OSError(f"the ledger in {folder} cannot be written")
