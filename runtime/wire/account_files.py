"""The accounts of what has crossed, as files of a run folder: `borders/ROLE-SLOT-LIFE.json` of a life of a host, and
`borders/home-PID.json` of the run's home daemon.

Decides where they are and how they are written: again every ACCOUNT_SECONDS and at the end, whole, and without waiting
for the disk, since the next one says all of it again.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from isthmus.runtime.channels.crossings import Account
from isthmus.runtime.ids import Member
from isthmus.runtime.system.files import put_bytes, read_bytes

FOLDER: Final = "borders"
HOME: Final = "home"
ACCOUNT_SECONDS: Final = 5.0
"""What a killed host loses of its account; the other end of each connection has an account of its own."""
OF_HOST: Final = re.compile(
    rf"{FOLDER}/(?P<role>[A-Za-z0-9][A-Za-z0-9._-]{{0,99}})-(?P<slot>\d{{1,9}})-(?P<life>\d{{1,9}})\.json"
)


def of_member(run: Path, member: Member) -> Path:
    """The file of a life of a host."""
    replica = member.replica
    return run / FOLDER / f"{replica.role}-{replica.slot}-{member.incarnation}.json"


def of_home(run: Path) -> Path:
    """The file of this process, which is the daemon of the run's home."""
    return run / FOLDER / f"{HOME}-{os.getpid()}.json"


def write(path: Path, account: Account) -> None:
    """Write an account; one that the disk does not take is left out until the next."""
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        put_bytes(path, msgspec.json.encode(account))


def read(path: Path) -> Account:
    """The account in a file; OSError or ValueError if there is none."""
    return msgspec.json.decode(read_bytes(path), type=Account)
