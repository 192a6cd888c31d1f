"""The daemon that a loop which starts itself brings: `python -m isthmus.programs.engine.machine.loop_daemon PID LINE`.

Started by the process of that loop, never by hand, in the folder of all such daemons. It joins the home that the first
message on the line names, and has a name to itself. The name of a daemon whose loop has ended, and which therefore
leaves, is waited for: so a loop that is started again at once has the slot that it had.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from isthmus.programs.engine.machine.invitations import GivenText
from isthmus.programs.engine.machine.joining import JoinRequest, join
from isthmus.programs.engine.machine.loop_guest import LoopGuest
from isthmus.programs.engine.machine.names import NameTakenError, living
from isthmus.programs.loop_script import INVITE, LoopHome
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import read_text, write_json
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import started_at, unblock
from isthmus.runtime.wire.daemon_notes import DaemonNote

INVALID_STATUS: Final = 2
LEAVING_SECONDS_MAX: Final = 30.0
"""How long a name is waited for that a leaving daemon has."""
LOOK_SECONDS: Final = 0.2


def main(arguments: list[str]) -> int:
    """Be the daemon of the process with the pid, and the line to it, that the arguments name; returns the status."""
    pid, line = int(arguments[0]), ProcessLine.inherited(arguments[1])
    first = line.next()
    if first is None:
        return 0  # Its loop has ended already.
    home = LoopHome(**first["home"])
    guest = LoopGuest(pid, line, leaves=first["leaves"], evaluates=bool(first["evaluates"]))
    request = JoinRequest(
        address=home.address,
        name=home.name,
        invitation=None if home.invitation is None else Path(home.invitation),
        invitation_text=None if home.invitation_text is None else GivenText(INVITE, home.invitation_text.encode()),
        until_over=True,
        guest=guest,
    )
    note = _note_of_loop(os.getpid())
    write_json(note, asdict(DaemonNote("", pid, started_at(pid), "")))
    try:
        return _join(request, guest)
    finally:
        note.unlink(missing_ok=True)


def _join(request: JoinRequest, guest: LoopGuest) -> int:
    taken, number, until = "", 1, time.monotonic() + LEAVING_SECONDS_MAX
    while True:
        host = request.host if number == 1 else f"{request.host}-{number}"
        try:
            return join(replace(request, host=host))
        except ConfigError as error:
            if isinstance(error, NameTakenError) and time.monotonic() < until and _is_leaving(error.name):
                time.sleep(LOOK_SECONDS)
                continue
            if not isinstance(error, NameTakenError) or error.name == taken:  # It is not that of the host.
                guest.tell(faults=[list(fault) for fault in error.faults])
                return INVALID_STATUS
            taken, number = error.name, number + 1


def _note_of_loop(daemon: int) -> Path:
    """Where the daemon with that pid notes the process of its loop."""
    return Path(f"{daemon}.json")


def _is_leaving(name: str) -> bool:
    """Whether the daemon of that name is a loop's that has ended."""
    with suppress(OSError, KeyError, TypeError, ValueError):
        daemon = living()[name].note.pid
        return not DaemonNote.of(json.loads(read_text(_note_of_loop(daemon)))).is_living
    return False


if __name__ == "__main__":
    unblock()
    sys.exit(main(sys.argv[1:]))
