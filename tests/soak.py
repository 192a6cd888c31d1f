"""`make soak`: hours of checks, in parts of at most half an hour, which go on where they were left.

    python -m tests.soak [--long] [--list] [PART...]

A part is a command with a name: `world-500` are the seeds from 500 on. `world` means all parts of that kind. Without
names every part is carried out that has not been, of this code; a named one is carried out again. What a part has found
is recorded when it ends, in a file outside of the tree (`state_file`) whose name is a digest of runtime, ops and
programs: an end by a signal loses the part under way, and other code begins anew. With `--list` nothing is carried out.
The exit status is 0 once nothing is left and nothing was found, 2 for a wrong name.

Searches and changes are cut by seeds, tests by files, mutants by names. `each` is what `isthmus simulate world --each`
demands, of all seeds of a kind together: it needs their parts. `--long` has more seeds; parts of both are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import msgspec

from isthmus.programs import DEFAULT
from isthmus.runtime.system.files import user_folder, write_json

ROOT: Final = Path(__file__).resolve().parents[1]
CODE: Final = ("runtime", "ops", "programs")
TORCH: Final = "tests/torch_tasks"
MOSAIC: Final = f"{TORCH}/test_data_of_others.py"
FILES_MAX: Final = 8
"""Of a folder, in a part of all examples and seeds: so many files share the start of two workers."""
MUTANTS_MAX: Final = 6
"""One that survives takes 300 seeds."""
SHOWN: Final = 2000
"""Characters of the output of a part that has failed."""


@dataclass(frozen=True)
class Search:
    """Seeds of `isthmus simulate world`: how many of them there are, with `--long` and without, and in a part.

    `rate` is how many of them are wanted for each fault and phase to have happened once; 0: none is asked for.
    """

    options: tuple[str, ...]
    seeds: int
    seeds_long: int
    in_part: int
    rate: int = 0


SEARCHES: Final = {
    "world": Search((), 2000, 10_000, 100, 500),
    "deaths": Search(("--deaths",), 500, 2000, 100, 100),
    "gangs": Search(("--gangs",), 200, 1000, 50, 500),
    "notices": Search(("--notices",), 500, 1000, 50),
    "regional": Search(("--program", "regional-diloco"), 300, 1000, 50),
    "dipaco": Search(("--program", "dipaco"), 300, 1000, 50),
    "liars": Search(("--liars",), 300, 1000, 50),
}
"""100 seeds take less than half an hour where two cores have seven others to serve each: 4.1 with gangs a minute."""
KILLS, KILLS_LONG, KILLS_IN_PART = 50, 200, 10
"""Real runs: 50 of them took about 6 minutes on two cores, and 70 on cores that others used, too."""
CHANGES, CHANGES_IN_PART = 50, 2
"""One that no test notices takes all of `make changed`, and of `make test`."""
EACH: Final = "each"


class Found(msgspec.Struct, forbid_unknown_fields=True):
    """What a part has found: how many `seeds` or runs it has tried, the `violations` of those, by seed, and its exit
    `status`; `phases` count faults by kind and phase of the run, `guards` by name."""

    status: int
    minutes: float
    seeds: int | None = None
    violations: dict[str, str] = {}
    phases: dict[str, dict[str, int]] = {}
    guards: dict[str, int] = {}
    too_rare: list[str] = []

    @property
    def is_good(self) -> bool:
        return not (self.status or self.violations or self.too_rare)


@dataclass(frozen=True)
class Part:
    """A command with a name, and how its standard output is read; without a command, what is read of other parts."""

    name: str
    kind: str
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    read: Callable[[str], dict[str, Any]] = lambda told: {}


# -- the parts ---------------------------------------------------------------------------------------------------------


def parts(*, is_long: bool = False, root: Path = ROOT) -> list[Part]:
    """Every part, in the order in which they are carried out."""
    found = [part for name, search in SEARCHES.items() for part in _of_search(name, search, is_long=is_long)]
    found.append(Part(EACH, EACH))
    found += _kills(KILLS_LONG if is_long else KILLS)
    files = sorted(path.relative_to(root).as_posix() for path in root.joinpath("tests").rglob("test_*.py"))
    python = ".venv/bin/python"
    found += _of_examples(python, [file for file in files if not file.startswith((TORCH, "tests/engines"))])
    soaked = [file for file in files if re.search(r"\bmark\.soak\b|\bsoaked\(", root.joinpath(file).read_text())]
    found += [_tests("soak", python, "soak and not torch", [file]) for file in soaked if not file.startswith(TORCH)]
    torch = [file for file in soaked if file.startswith(TORCH)]
    found += [_tests("torch", ".venv-torch/bin/python", "soak and torch", [file]) for file in torch]
    found.append(_tests("mosaic", ".venv-mosaic/bin/python", "soak and torch", [MOSAIC]))
    return found + _mutants(python) + _changes(python)


def _of_search(name: str, search: Search, *, is_long: bool) -> list[Part]:
    seeds = search.seeds_long if is_long else search.seeds
    command = (".venv/bin/isthmus", "simulate", "world", *search.options, "--json")
    return [
        Part(
            f"{name}-{seed}",
            name,
            (*command, "--seed", str(seed), "--seeds", str(min(search.in_part, seeds - seed))),
            read=_simulated,
        )
        for seed in range(0, seeds, search.in_part)
    ]


def _kills(runs: int) -> list[Part]:
    command = (".venv/bin/python", "-m", "tests.bench.long.soak_kills", "--runs", str(KILLS_IN_PART), "--json")
    seeds = range(0, runs, KILLS_IN_PART)
    return [Part(f"kills-{seed}", "kills", (*command, "--seed", str(seed)), read=_killed) for seed in seeds]


def _changes(python: str) -> list[Part]:
    """Small changes of the code: what `make test` notices of them, `make changed` does, too."""
    command = (python, "-m", "tests.changed_check", "--mutants", str(CHANGES_IN_PART), "--json")
    seeds = range(0, CHANGES, CHANGES_IN_PART)
    return [Part(f"changed-{seed}", "changed", (*command, "--seed", str(seed)), read=_killed) for seed in seeds]


def _of_examples(python: str, files: Sequence[str]) -> list[Part]:
    """All examples and seeds of what starts no process: some files of a folder in a part, two at a time."""
    marks, found = "not process and not soak and not engine and not torch", []
    for _, group in groupby(files, key=lambda file: Path(file).parent):
        here = list(group)
        for at in range(0, len(here), FILES_MAX):
            part = _tests("examples", python, marks, here[at : at + FILES_MAX], workers=2)
            found.append(Part(part.name, part.kind, part.command, {"TESTS_EFFORT": "100"}))
    return found


def _tests(kind: str, python: str, marks: str, files: Sequence[str], *, workers: int = 0) -> Part:
    many = ("-n", str(workers), "--no-loadscope-reorder", "--dist", "loadfile") if workers else ()
    name = files[0].removeprefix("tests/").removesuffix(".py").replace("/", ".")
    return Part(f"{kind}-{name}", kind, (python, "-m", "pytest", "-q", *many, "-m", marks, *files))


def _mutants(python: str) -> list[Part]:
    from tests.programs.wings.simulation.mutants import MUTANTS

    names = [broken.__name__ for broken, _ in MUTANTS]
    command = (python, "-m", "tests.programs.wings.simulation.mutants")
    return [
        Part(f"mutants-{names[at]}", "mutants", (*command, *names[at : at + MUTANTS_MAX]))
        for at in range(0, len(names), MUTANTS_MAX)
    ]


def _simulated(told: str) -> dict[str, Any]:
    """What `isthmus simulate world --json` says."""
    data = json.loads(told)
    violations = {str(each["seed"]): f"{each['violation']}\n{each['command']}" for each in data["failures"]}
    return {
        "seeds": data["seeds"],
        "violations": violations,
        "phases": data["phases"],
        "guards": data["guards"],
        "too_rare": data["too_rare"],
    }


def _killed(told: str) -> dict[str, Any]:
    """What real runs with kills, or changes of the code, say by seed."""
    runs = json.loads(told)
    return {
        "seeds": len(runs),
        "violations": {str(run["seed"]): "; ".join(run["wrong"]) for run in runs if run["wrong"]},
    }


def too_rare(found: dict[str, Found], *, is_long: bool) -> list[str] | None:
    """What happened in all seeds of each search less often than their number lets expect; None where some are left.

    A guard of the default program may fire in any search: the code behind it is the same, and some fire once in a
    thousand seeds.
    """
    from isthmus.programs.wings.simulation import searches

    rare, fired = list[str](), Counter[str]()
    for name, search in SEARCHES.items():
        own = [found.get(part.name) for part in _of_search(name, search, is_long=is_long)]
        done = [each for each in own if each is not None]
        if len(done) < len(own):
            return None
        guards = sum((Counter(each.guards) for each in done), Counter[str]())
        fired += guards
        if not search.rate:
            continue
        phases = Counter[tuple[str, str]]()
        for each in done:
            phases.update({(kind, phase): count for kind, of in each.phases.items() for phase, count in of.items()})
        least = sum(each.seeds or 0 for each in done) // search.rate
        if name == "world":
            rare += searches.rare(phases, DEFAULT, least)
        elif name == "deaths":
            rare += searches.rare_steps(phases, least)
        elif least:
            rare += searches.unseen(guards)
    return rare + (searches.idle(fired, DEFAULT) if "world" in SEARCHES else [])


# -- the state ---------------------------------------------------------------------------------------------------------


def digest(root: Path = ROOT) -> str:
    """A digest of the code that is tried: whatever lies in its folders, but what Python or a kernel's cache made."""
    found = hashlib.sha256()
    for path in sorted(each for name in CODE for each in root.joinpath(name).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def state_file(root: Path = ROOT) -> Path:
    """The file of what was found of this code, in the folder for the user's state; FileNotFoundError without one."""
    home = user_folder("XDG_STATE_HOME", ".local/state")
    if home is None:
        raise FileNotFoundError(
            "Looking for what a soak has done: expected a folder for state, found neither XDG_STATE_HOME nor a home. "
            "Set XDG_STATE_HOME to a folder that may be written to."
        )
    return home / "isthmus" / "soak" / f"{digest(root)}.json"


def recorded(file: Path) -> dict[str, Found]:
    """What every part has found, by name; nothing where there is no file."""
    with suppress(FileNotFoundError):
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Found])
    return {}


def record(file: Path, name: str, found: Found) -> None:
    """Record a part, beside what another soak has recorded meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, msgspec.to_builtins({**recorded(file), name: found}))


# -- carrying out ------------------------------------------------------------------------------------------------------


def soak(every: Sequence[Part], file: Path, names: Sequence[str] = (), *, is_long: bool = False) -> bool:
    """Carry out the named parts, or all that are left; whether nothing was found, and nothing of `every` is left.

    ValueError for a name that no part and no kind has. KeyboardInterrupt at a signal.
    """
    if unknown := [name for name in names if not any(name in (part.name, part.kind) for part in every)]:
        kinds = ", ".join(dict.fromkeys(part.kind for part in every))
        raise ValueError(f"Reading names of parts: expected some of --list, or {kinds}, found {', '.join(unknown)}.")
    done = recorded(file)
    named = [part for part in every if part.name in names or part.kind in names]
    try:
        for part in named if names else [part for part in every if part.name not in done]:
            print(f"{part.name}: {' '.join(part.command) or 'what the searches have met'}", flush=True)
            found = _carry_out(part, file) if part.command else _met(recorded(file), is_long=is_long)
            if found is None:
                print("    searches are left", flush=True)
                continue
            record(file, part.name, found)
            print(f"    {_result(found)}", flush=True)
    finally:
        done = recorded(file)
        print(_left(every, done), flush=True)
    return all(part.name in done and done[part.name].is_good for part in every)


def _carry_out(part: Part, file: Path) -> Found:
    """Carry out a part, in a session of its own: a terminal's Ctrl-C reaches it once, through this process."""
    begun = time.monotonic()
    log = file.with_suffix("") / f"{part.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w+") as errors:
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env=os.environ | part.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            told, _ = process.communicate()
        except BaseException:
            _stop(process)
            raise
        minutes = round((time.monotonic() - begun) / 60, 2)
        status = 0 if process.returncode == NO_TESTS and "pytest" in part.command else process.returncode
        try:
            found = Found(status, minutes, **part.read(told))
        except (ValueError, LookupError, TypeError):  # It ended before it could say anything.
            found = Found(status or 1, minutes)
        errors.write(told)
        if not found.is_good:
            errors.seek(0)
            print(errors.read()[-SHOWN:], flush=True)
    return found


STOP_SECONDS_MAX: Final = 60.0
"""Of a part that is ended: tests and runs with kills leave no process behind when they end as by Ctrl-C."""


def _stop(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=STOP_SECONDS_MAX)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


NO_TESTS: Final = 5
"""The exit status of pytest where no test of a file has the marks."""


def _met(found: dict[str, Found], *, is_long: bool) -> Found | None:
    rare = too_rare(found, is_long=is_long)
    return None if rare is None else Found(0, 0.0, too_rare=rare)


def _result(found: Found) -> str:
    seeds = "" if found.seeds is None else f", {found.seeds} seeds, {len(found.violations) or 'none'} with a violation"
    rare = "".join(f"\n    too rare: {each}" for each in found.too_rare)
    return f"exit status {found.status}{seeds}; {found.minutes:.1f} minutes{rare}"


def _left(every: Iterable[Part], done: dict[str, Found]) -> str:
    """What is left, by kind, and what was found."""
    left = Counter(part.kind for part in every if part.name not in done)
    bad = [part.name for part in every if part.name in done and not done[part.name].is_good]
    lines = [f"left: {', '.join(f'{count} of {kind}' for kind, count in left.items()) or 'nothing'}"]
    lines += [f"found: {name}: {_result(done[name])}" for name in bad]
    return "\n".join(lines)


def listed(every: Iterable[Part], done: dict[str, Found]) -> str:
    """A line for each part: its name, and what it has found, with its minutes."""
    return "\n".join(f"{part.name:<48} {_result(done[part.name]) if part.name in done else 'left'}" for part in every)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="names, or kinds, of parts to carry out again")
    parser.add_argument("--long", action="store_true", help="more seeds of each search")
    parser.add_argument("--list", action="store_true", help="what there is, and what each part has found")
    asked = parser.parse_args(words)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        every, file = parts(is_long=asked.long), state_file()
        if asked.list:
            print(listed(every, recorded(file)))
            print(_left(every, recorded(file)))
            return 0
        return 0 if soak(every, file, asked.parts, is_long=asked.long) else 1
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"ended by {error}; what was under way is not recorded", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
