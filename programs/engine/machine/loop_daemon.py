"""The daemon that a loop which starts itself brings: `python -m isthmus.programs.engine.machine.loop_daemon PID FD`.

Started by the process of that loop, never by hand. It joins the home that the first line on the socket names, and has
a name to itself.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from isthmus.programs.engine.machine.joining import JoinRequest, join
from isthmus.programs.engine.machine.loop_guest import LoopGuest, lines_of
from isthmus.programs.engine.machine.names import NameTakenError
from isthmus.programs.loop_task import LoopHome
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.processes import unblock

NAMES_MAX: Final = 1000
"""Loops of one name on a machine, each with a number behind it."""


def main(arguments: list[str]) -> int:
    """Be the daemon of the process with the pid, and the socket, that the arguments name; returns the exit status."""
    pid, descriptor = map(int, arguments)
    connection, buffer = socket.socket(fileno=descriptor), bytearray()
    guest = LoopGuest(pid, connection, buffer)
    home = LoopHome(**_first_line(connection, buffer))
    request = JoinRequest(
        address=home.address,
        name=home.name,
        invitation=None if home.invitation is None else Path(home.invitation),
        invitation_text=home.invitation_text,
        until_over=True,
        guest=guest,
    )
    host = socket.gethostname()
    for number in range(NAMES_MAX):
        try:
            return join(replace(request, host=host if not number else f"{host}-{number + 1}"))
        except NameTakenError as error:
            if home.name is not None or number + 1 == NAMES_MAX:
                guest.tell(faults=[list(fault) for fault in error.faults])
                return 2
        except ConfigError as error:
            guest.tell(faults=[list(fault) for fault in error.faults])
            return 2
    return 2


def _first_line(connection: socket.socket, buffer: bytearray) -> dict[str, Any]:
    while data := connection.recv(1 << 16):
        buffer += data
        for message in lines_of(buffer):
            return message
    raise EOFError


if __name__ == "__main__":
    unblock()
    sys.exit(main(sys.argv[1:]))
