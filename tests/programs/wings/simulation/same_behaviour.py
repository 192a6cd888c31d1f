"""Whether a change of the code's shape left the behaviour as it was: the events and commands of whole simulated runs.

    python -m tests.programs.wings.simulation.same_behaviour record FOLDER                          # before the change
    python -m tests.programs.wings.simulation.same_behaviour compare FOLDER [--renames NAMES.toml]  # after it

`record` runs universes of `isthmus simulate world`, with deaths and with gangs, and of every program, and writes what
every core on every machine was told and answered: records of all tapes as plain values, without the openings of
segments, which hold the state of a core under the names of its classes and fields. `compare` runs the same universes
again and names the first record that differs; exit status 1 then. What was renamed in between is in a file with three
tables, old name to new one, applied to the recording:

    [modules]            # dotted prefixes, in texts
    "isthmus.runtime.cores.quorum_core" = "isthmus.runtime.cores.quorum_core"
    [words]              # whole strings, as the tags of events and commands
    Opened = "RoundOpened"
    [fields]             # keys of objects
    told = "spec"
"""

from __future__ import annotations

import argparse
import lzma
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec

from isthmus.programs.wings.simulation import searches, seeds, universe
from isthmus.programs.wings.simulation.universe import Outcome
from isthmus.runtime.tape.writing import MARK, frames

PLAIN: Final = 30
"""Seeds of `isthmus simulate world`: all kinds of faults happen in them."""
OTHERS: Final = 8
"""Seeds of deaths, of gangs, and of each other program."""
PROGRAMS: Final = ("regional-diloco", "dipaco", "streaming-diloco", "diloco", "elastic-data-parallel", "data-parallel")


def runs() -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """The name of each universe, and what runs it."""
    for seed in range(PLAIN):
        yield f"world-{seed}", lambda seed=seed: seeds.run(seed)
    for seed in range(OTHERS):
        yield f"deaths-{seed}", lambda seed=seed: searches.run_deadly(seed)
        yield f"gangs-{seed}", lambda seed=seed: searches.run_ganged(seed)
        for program in PROGRAMS:
            yield f"{program}-{seed}", lambda seed=seed, program=program: seeds.run(seed, program)


def behaviour(run: Callable[[], Outcome]) -> dict[str, Any]:
    """What happened in a universe, as plain values."""
    tapes: dict[str, bytes] = {}
    digest = universe.digest

    def digested(taped: Mapping[str, bytes]) -> str:
        tapes.update(taped)
        return digest(taped)

    with mock.patch.object(universe, "digest", digested):
        outcome = run()
    return {
        "outcome": outcome.outcome,
        "violation": outcome.violation,
        "faults": dict(sorted(outcome.faults.items())),
        "guards": dict(sorted(outcome.guards.items())),
        "events": outcome.events,
        "seconds": outcome.seconds,
        "story": outcome.story,
        "status": plain(outcome.status),
        "tapes": {name: records(data) for name, data in tapes.items()},
    }


def records(data: bytes) -> list[Any]:
    """The records of a tape, in order, without the openings of its segments."""
    bodies = [msgspec.msgpack.decode(body, strict=False) for body in frames(data).bodies]
    return [body for body in bodies if not (isinstance(body, list) and body and body[0] == MARK)]


def plain(value: Any) -> Any:
    """`value` as a file gives it back."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def renamed(value: Any, names: Mapping[str, Mapping[str, str]]) -> Any:
    """`value` under its new names."""
    words, fields, modules = (names.get(part, {}) for part in ("words", "fields", "modules"))
    ends = sorted(map(re.escape, modules), key=len, reverse=True)
    pattern = re.compile(rf"(?:{'|'.join(ends)})(?![\w])") if ends else None

    def rename(value: Any) -> Any:
        if isinstance(value, str):
            value = words.get(value, value)
            return pattern.sub(lambda match: modules[match[0]], value) if pattern and "isthmus." in value else value
        if isinstance(value, list):
            return [rename(each) for each in value]
        if isinstance(value, dict):
            return {fields.get(key, rename(key)): rename(each) for key, each in value.items()}
        return value

    return rename(value)


def difference(before: Any, after: Any, where: str = "") -> str | None:
    """The first place where two values differ, in words."""
    if isinstance(before, dict) and isinstance(after, dict) and list(before) == list(after):
        pairs = [(f"{where} {key}", before[key], after[key]) for key in before]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(f"{where}[{number}]", *pair) for number, pair in enumerate(zip(before, after, strict=True))]
    elif isinstance(before, list) and isinstance(after, list):
        same = next((n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
        if same is not None:
            return difference(before[same], after[same], f"{where}[{same}]")
        return f"{where}: {len(before)} before, {len(after)} now"
    elif before == after or (before != before and after != after):  # Not a number is not itself.
        return None
    else:
        return f"{where}:\n  before {before}\n  now    {after}"
    return next((found for at, old, new in pairs if old != new and (found := difference(old, new, at))), None)


def main() -> int:
    """Record, or compare; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--renames", type=Path, help="a TOML file with tables [modules], [words] and [fields]")
    options = parser.parse_args()
    names = tomllib.loads(options.renames.read_text()) if options.renames else {}
    options.folder.mkdir(parents=True, exist_ok=True)
    count, differ = 0, []
    for name, run in runs():
        file = options.folder / f"{name}.msgpack.xz"
        if options.what == "record":
            file.write_bytes(lzma.compress(msgspec.msgpack.encode(behaviour(run)), preset=1))
        else:
            before = renamed(msgspec.msgpack.decode(lzma.decompress(file.read_bytes())), names)
            if found := difference(before, plain(behaviour(run))):
                differ.append(name)
                print(f"{name}:{found}", flush=True)
        count += 1
    print(f"{count} universes of {options.folder}" + (f", {len(differ)} differ" if options.what == "compare" else ""))
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
