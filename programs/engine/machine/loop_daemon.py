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

INVALID_STATUS: Final = 2


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
    taken, number = "", 0
    while True:
        number += 1
        host = request.host if number == 1 else f"{request.host}-{number}"
        try:
            return join(replace(request, host=host))
        except ConfigError as error:
            if not isinstance(error, NameTakenError) or error.name == taken:  # It is not that of the host.
                guest.tell(faults=[list(fault) for fault in error.faults])
                return INVALID_STATUS
            taken = error.name


def _first_line(connection: socket.socket, buffer: bytearray) -> dict[str, Any]:
    while data := connection.recv(1 << 16):
        buffer += data
        for message in lines_of(buffer):
            return message
    raise EOFError


if __name__ == "__main__":
    unblock()
    sys.exit(main(sys.argv[1:]))
