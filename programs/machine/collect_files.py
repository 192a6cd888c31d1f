"""The files of hosts on other machines, fetched to the home of their run: logs, spans and tapes, within bounds.

Spans make the timeline, tapes that of lives that were killed; logs are for people. Files that stay where they are,
because they are beyond the bound or do not arrive whole, are named in the log of the run's daemon; a machine that does
not answer, or answers nonsense, costs its files and nothing else. From a machine only files of hosts are taken that it
may have had: it writes into no other's, and into no tape that is here. While a run goes on, the end of one log is read
where it grows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from isthmus.programs.machine.links import Links
from isthmus.programs.machine.outposts import PIECE_BYTES
from isthmus.programs.run.launch import log_of
from isthmus.runtime.errors import ConfigError, nearest
from isthmus.runtime.ids import Replica
from isthmus.runtime.system.files import append_bytes
from isthmus.runtime.tape.reading import FOLDER as TAPES

GATHER_SECONDS_MAX: Final = 30.0
ANSWER_SECONDS: Final = 5.0
FILE_BYTES_MAX: Final = 32 << 20
MACHINE_BYTES_MAX: Final = 128 << 20
TAPES_BYTES_MAX: Final = 32 << 20
"""Of tapes of one machine: a run is complete without them, and they are fetched last, over a link of any speed."""
TEXT_BYTES_MAX: Final = PIECE_BYTES
"""The end of a log that one message holds."""
_NONSENSE: Final = (OSError, LookupError, TypeError, ValueError, AttributeError)
_OF_HOST: Final = (
    re.compile(r"logs/(?P<role>[A-Za-z0-9][A-Za-z0-9._-]{0,99})-(?P<slot>\d{1,9})\.log"),
    re.compile(r"spans/(?P<role>[A-Za-z0-9][A-Za-z0-9._-]{0,99})-(?P<slot>\d{1,9})-\d{1,9}\.json"),
    re.compile(r"tape/(?P<role>[A-Za-z0-9][A-Za-z0-9._-]{0,99})-(?P<slot>\d{1,9})-\d{1,9}\.\d{1,9}\.tape"),
)
_FORK_SERVER: Final = "logs/forkserver.log"


async def gather(
    links: Links, run: str, folder: Path, machines: Mapping[str, Collection[Replica]], log: Callable[[str], None]
) -> None:
    """Fetch a run's files from `machines` into its folder; each maps to the replicas that it may have hosted."""

    async def one(machine: str) -> None:
        try:
            async with asyncio.timeout(GATHER_SECONDS_MAX):
                await _fetch_all(links, run, folder, machine, machines[machine], log)
        except (ConfigError, TimeoutError, *_NONSENSE) as error:
            why = str(error)[:500] or "it took too long"
            log(f"logs, spans and tapes of {machine} are missing, or some of them: {why}")

    async with asyncio.TaskGroup() as group:
        for machine in machines:
            group.create_task(one(machine))


async def _fetch_all(
    links: Links, run: str, folder: Path, machine: str, hosts: Collection[Replica], log: Callable[[str], None]
) -> None:
    listed = await links.request(machine, {"type": "files", "run": run}, ANSWER_SECONDS)
    left, tapes_left, seen = MACHINE_BYTES_MAX, TAPES_BYTES_MAX, set[str]()
    for name, size in listed["files"]:
        if not is_of(name, hosts) or name in seen or type(size) is not int or size < 0:
            raise ValueError(f"no file of a host of this machine: {str(name)[:100]!r}, {str(size)[:20]} bytes")
        seen.add(name)
        is_tape = name.startswith(f"{TAPES}/")
        if size > min(left, FILE_BYTES_MAX, tapes_left if is_tape else left):
            log(f"{name} of {machine} stays there: {size} bytes")
            continue
        left -= size
        tapes_left -= size if is_tape else 0
        data = await fetch(links, run, machine, name, size)
        if len(data) < size:
            log(f"{name} of {machine} is not whole: {len(data)} of {size} bytes came")
        if len(data) == size or name.endswith(".log"):  # The beginning of a log is useful, that of spans is not.
            target = folder / here(name, machine)
            if not (is_tape and target.exists()):
                append_bytes(target, data)


def is_of(name: object, hosts: Collection[Replica]) -> bool:
    """Whether a file is the log or the spans of one of these hosts, or of a fork server."""
    forms = [form for each in _OF_HOST if isinstance(name, str) and (form := each.fullmatch(name))]
    return name == _FORK_SERVER or any(Replica(form["role"], int(form["slot"])) in hosts for form in forms)


async def fetch(links: Links, run: str, machine: str, name: str, size: int) -> bytes:
    """The first `size` bytes of a run's file on a machine, fewer where the file is shorter.

    ConfigError if the machine does not answer, ValueError if a piece is larger than PIECE_BYTES.
    """
    data = bytearray()
    while len(data) < size:
        asked = {"type": "piece", "run": run, "name": name, "offset": len(data)}
        piece = (await links.request(machine, asked, ANSWER_SECONDS))["text"].encode("latin-1")
        if not piece:
            break
        if len(piece) > PIECE_BYTES:
            raise ValueError(f"{name}: a piece of {len(piece)} bytes, {PIECE_BYTES} may be")
        data += piece
    return bytes(data[:size])


def here(name: str, machine: str) -> str:
    """The name at home of another machine's file: the fork servers' logs have the same name on all machines."""
    return name.replace("forkserver.log", f"forkserver-{machine}.log")


def names(folder: Path) -> dict[str, Path]:
    """Host ('learner/2') or 'daemon' -> its log, of those that are in a run folder."""
    return {path.stem.replace("-", "/"): path for path in sorted((folder / "logs").glob("*.log"))}


async def end_of_log(folder: Path, name: str, run: str, elsewhere: Mapping[str, str], links: Links) -> str:
    """The end of a host's log; ConfigError, with the nearest name, if there is none.

    `elsewhere`: host -> machine, for the run's hosts on other machines.
    """
    here = names(folder)
    if name in elsewhere and links.is_up(elsewhere[name]):
        path = str(Path("logs") / log_of(folder, Replica.parse(name)).name)
        asked = {"type": "piece", "run": run, "name": path, "offset": -TEXT_BYTES_MAX}
        answer = await links.request(elsewhere[name], asked, ANSWER_SECONDS)
        return str(answer["text"]).encode("latin-1").decode(errors="replace")
    if name not in here:
        do = nearest(name, {*here, *elsewhere})
        raise ConfigError(f"Looking for the log of {name!r}", "a host of this run", repr(name), do)
    with here[name].open("rb") as file:
        file.seek(max(0, here[name].stat().st_size - TEXT_BYTES_MAX))
        return file.read(TEXT_BYTES_MAX).decode(errors="replace")
