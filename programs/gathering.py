"""What hosts on other machines have written, fetched to the home of their run: logs and spans, within bounds.

Spans make the timeline, logs are for people. Files beyond the bound stay where they are, and that is said in the log of
the run's daemon; a machine that does not answer costs its files and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from isthmus.programs.machine_links import Links
from isthmus.programs.outposts import FILES, PIECE_BYTES
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.store import append_bytes

GATHER_SECONDS_MAX: Final = 30.0
ANSWER_SECONDS: Final = 5.0
FILE_BYTES_MAX: Final = 32 << 20
MACHINE_BYTES_MAX: Final = 128 << 20


async def gather(links: Links, run: str, folder: Path, machines: Sequence[str], log: Callable[[str], None]) -> None:
    """Fetch what the machines have of a run into its folder."""

    async def one(machine: str) -> None:
        try:
            async with asyncio.timeout(GATHER_SECONDS_MAX):
                await _fetch_all(links, run, folder, machine, log)
        except (ConfigError, TimeoutError, OSError, KeyError, ValueError) as error:
            log(f"logs and spans of {machine} are missing: {error or 'it took too long'}")

    async with asyncio.TaskGroup() as group:
        for machine in machines:
            group.create_task(one(machine))


async def _fetch_all(links: Links, run: str, folder: Path, machine: str, log: Callable[[str], None]) -> None:
    listed = await links.request(machine, {"type": "files", "run": run}, ANSWER_SECONDS)
    left = MACHINE_BYTES_MAX
    for name, size in listed["files"]:
        if not FILES.fullmatch(name):
            raise ValueError(f"no file of a run: {name!r}")
        if size > min(left, FILE_BYTES_MAX):
            log(f"{name} of {machine} stays there: {size} bytes")
            continue
        left -= size
        data = await fetch(links, run, machine, name, size)
        append_bytes(folder / here(name, machine), data)


async def fetch(links: Links, run: str, machine: str, name: str, size: int) -> bytes:
    """The first bytes of a file of a run on a machine; ConfigError if that does not answer."""
    data = bytearray()
    while len(data) < size:
        asked = {"type": "piece", "run": run, "name": name, "offset": len(data)}
        piece = (await links.request(machine, asked, ANSWER_SECONDS))["text"].encode("latin-1")
        if not piece or len(piece) > PIECE_BYTES:
            break
        data += piece
    return bytes(data[:size])


def here(name: str, machine: str) -> str:
    """What a file of another machine is called at home: the fork servers of all machines have logs of one name."""
    return name.replace("forkserver.log", f"forkserver-{machine}.log")
