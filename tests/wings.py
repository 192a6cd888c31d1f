"""Whether each wing can be deleted: in a copy without its folder and its row everything else works.

    python -m tests.wings [NAME ...]       # make wings, make wings WING=NAME

Of each wing, in a copy of the tracked files without it, and without the wings that need it:

- every other module can be imported, and what users import;
- none of its nouns occurs elsewhere in runtime, ops and programs. Nouns are the names of its public classes and
  functions, its commands and its messages. A name that the rest defines for itself, too, is no noun of the wing;
  another one may be struck below, with a reason;
- `make quick` of the rest passes, without the files of tests that use the wing: so many are told;
- `isthmus train --tokens 20000` trains.

What is no wing yet is listed with the reason (`UNCUT`). Exit status 1 if a wing does not hold.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.programs.wing_table import WINGS, Wing

ROOT: Final = Path(__file__).resolve().parents[1]
TOPS: Final = ("runtime", "ops", "programs")
TABLE: Final = "programs/wing_table.py"

STRUCK: Final[Mapping[str, Mapping[str, str]]] = {
    "borders": {"borders": "the folder in which hosts write what they sent and received"},
    "compile": {"compile": "what jax, and a pattern, does"},
    "failover": {"resume": "how a command goes on with its own run"},
    "plan": {"plan": "what a host runs, in its core's messages; and that of deliberate faults"},
    "report": {"report": "a port of inner-step, and what a machine tells its home"},
    "why": {"why": "a reason, in figures of faults"},
}
"""Nouns of a wing that occur elsewhere, with the reason."""
UNCUT: Final[Mapping[str, str]] = {
    "loops": "17 imports of the core: the request, the run's daemon and the clusters' each know what a script is",
    "folders": "a model folder is one of the two kinds of task that a request takes; 26 imports, most of `trained`",
    "paths": "the parts of a model are a seam for a later day: `paths is None` in ten files",
    "metrics": "the options --metrics-port and --metrics-address are those of train, daemon and join",
    "bucket": "the option --via is that of daemon and join, which name its store",
    "invitations": "join and loops read what invite writes",
    "torch": "folders and loops stand on it, and neither is a wing yet",
}
"""Features of the list that are no wing yet, and why."""
OF_THE_WHOLE: Final = tuple(
    f"tests/test_{name}.py" for name in ("changed", "figures", "links", "settings_page", "wings")
)
"""Tests of pages, which describe all wings; of what processes were seen to load; and of this."""
SECONDS_MAX: Final = 1800.0


class Names(NamedTuple):
    """The names of one file: those that it defines, those that it uses, and its texts, with a line of each."""

    defined: frozenset[str]
    used: Mapping[str, int]
    texts: Mapping[str, int]


class Nouns(NamedTuple):
    """What a wing calls its own: names of its code; and words, its commands and messages."""

    names: frozenset[str]
    words: frozenset[str]


@cache
def names_of(text: str) -> Names:
    """The names that a Python file defines, parameters and attributes too, and those that it uses."""
    defined, used, texts = set[str](), dict[str, int](), dict[str, int]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                used.setdefault(name, node.lineno)
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "isthmus":
                used.update({each.name: node.lineno for each in names if each.name not in used})
            case ast.Import(names=names) | ast.ImportFrom(names=names):  # A name of others.
                defined.update((each.asname or each.name).partition(".")[0] for each in names)
            case ast.Constant(value=str(word)):
                texts.setdefault(word, node.lineno)
    return Names(frozenset(defined), used, texts)


def nouns_of(texts: Sequence[str], wing: Wing) -> Nouns:
    """The public classes and functions of a wing's files, its commands and its messages."""
    trees = [ast.parse(text) for text in texts]
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
    public = {each.name for tree in trees for each in tree.body if isinstance(each, kinds)}
    messages = {kind for service in wing.services for kind in service.messages}
    own = frozenset(each for each in public if not each.startswith("_"))
    return Nouns(own, frozenset(messages | wing.commands.keys()))


def leaks(nouns: Nouns, rest: Mapping[str, str], struck: Mapping[str, str]) -> Iterator[str]:
    """FILE:LINE NOUN of each noun in the rest, by file, that it does not define for itself."""
    found = {file: names_of(text) for file, text in rest.items()}
    defined = {each for names in found.values() for each in names.defined}
    wanted, words = nouns.names - defined - struck.keys(), nouns.words - struck.keys()
    for file, names in sorted(found.items()):
        yield from (f"{file}:{names.used[noun]} {noun}" for noun in sorted(wanted & names.used.keys()))
        yield from (f"{file}:{names.texts[noun]} {noun}" for noun in sorted(words & names.texts.keys()))


def gone_with(name: str, wings: Sequence[Wing] = WINGS) -> list[str]:
    """A wing, and those that need it, whatever is between."""
    gone = [name]
    while more := [each.name for each in wings if each.name not in gone and set(each.needs) & set(gone)]:
        gone += more
    return gone


def without_rows(text: str, gone: Sequence[str]) -> str:
    """The text of the table without the rows of these wings."""
    lines = text.splitlines(keepends=True)
    rows = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Wing"
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value in gone
    ]
    for row in sorted(rows, key=lambda row: row.lineno, reverse=True):
        assert row.end_lineno is not None
        del lines[row.lineno - 1 : row.end_lineno]
    return "".join(lines)


def texts_of(folder: Path, tops: Sequence[str]) -> dict[str, str]:
    """The Python files below some folders of a tree, by path."""
    return {str(file.relative_to(folder)): file.read_text() for top in tops for file in (folder / top).rglob("*.py")}


def copied(to: Path, gone: Sequence[str]) -> None:
    """Make a copy of the tracked files without some wings, which its processes import as `isthmus`."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    dropped = tuple(f"{room}/{name}/" for name in gone for room in ("programs/wings", "tests/programs/wings"))
    for name in filter(None, listed.split("\0")):
        if not name.startswith(dropped) and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    table = to / TABLE
    table.write_text(without_rows(table.read_text(), gone))
    (to / SITE).mkdir()
    (to / SITE / "sitecustomize.py").write_text(HERE.format(root=str(ROOT), copy=str(to)))


SITE: Final = ".site-of-copy"
"""A folder of a copy that is on the path of its processes."""
HERE: Final = """
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("__editable___isthmus"):
        for package, path in module.MAPPING.items():
            module.MAPPING[package] = path.replace({root!r}, {copy!r})
"""
"""Has an installation that is editable find its packages in a copy."""
IMPORT_ALL: Final = """
import importlib, sys
from pathlib import Path
import isthmus, isthmus.testing
failed = 0
for top in ("runtime", "ops", "programs"):
    for file in sorted(Path(top).rglob("*.py")):
        parts = file.with_suffix("").parts
        if parts[:2] == ("programs", "face") or parts[-1] == "__main__":
            continue
        name = ".".join(("isthmus", *parts[: -1 if parts[-1] == "__init__" else None]))
        try:
            importlib.import_module(name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] == "isthmus" or "isthmus" in str(error):
                failed = 1
                print(f"{name}: {error}")
sys.exit(failed)
"""
TRAIN: Final = "from isthmus.programs.command.main import main; main()"


def run(words: Sequence[str], folder: Path, log: Path) -> bool:
    """Whether a Python of this environment ends with 0 there; what it prints is added to a log."""
    environment = {**os.environ, "PYTHONPATH": str(folder / SITE)}
    with log.open("ab") as out:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=out,
            timeout=SECONDS_MAX,
            check=False,
        )
    return done.returncode == 0


def quick_words() -> list[str]:
    """The words of `make quick` behind the Python that it calls."""
    lines = subprocess.run(["make", "--dry-run", "quick"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    words = shlex.split(next(line for line in lines.splitlines() if " -m pytest " in line))
    return words[words.index("-m") :]


def imports_of(text: str) -> set[str]:
    """The modules that a Python file may import: A and A.B for `from A import B`."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{each.name}" for each in names)}
    return found


def users_of(gone: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """The files of tests, by path, that name one of these wings, a command or a program of it, or import one that does;
    pytest's own plugin is the simulator's."""
    named = [f"isthmus.programs.wings.{name}" for name in gone]
    named += [f'"{word}"' for wing in WINGS if wing.name in gone for word in (*wing.commands, *wing.programs)]
    if "report" in gone:
        named.append("report.html")
    if "simulation" in gone:
        named += ["isthmus.testing", "world: World", "(world)", "WorldResult"]
    users = {file for file, text in texts.items() if any(each in text for each in named)}
    imported = {file: imports_of(text) for file, text in texts.items()}
    while True:
        modules = {file.removesuffix(".py").replace("/", ".") for file in users}
        more = {file for file, names in imported.items() if file not in users and names & modules}
        if not more:
            return sorted(file for file in users - {*OF_THE_WHOLE} if file.rpartition("/")[2].startswith("test_"))
        users |= more


def judged(wing: Wing, folder: Path, log: Path) -> tuple[list[str], int]:
    """What does not hold of a wing, in a copy that is made in a folder; and how many files of tests were left out."""
    gone = gone_with(wing.name)
    own = texts_of(ROOT, [f"programs/wings/{wing.name}"])
    copied(folder, gone)
    rest = {file: text for file, text in texts_of(folder, TOPS).items() if file != TABLE}
    faults = list(leaks(nouns_of(list(own.values()), wing), rest, STRUCK.get(wing.name, {})))
    if not run(["-c", IMPORT_ALL], folder, log):
        faults.append("a module of the rest cannot be imported")
    users = users_of(gone, texts_of(folder, ["tests"]))
    plugin = ["-p", "no:isthmus"] if "simulation" in gone else []
    if not run([*quick_words(), *plugin, *(f"--ignore={file}" for file in (*OF_THE_WHOLE, *users))], folder, log):
        faults.append("make quick of the rest fails")
    if not run(["-c", TRAIN, "train", "--tokens", "20000", "--run-dir", str(folder / "run")], folder, log):
        faults.append("isthmus train --tokens 20000 fails")
    return faults, len(users)


def main(wanted: Sequence[str]) -> int:
    """Judge these wings, or all; returns the exit status."""
    if unknown := sorted(set(wanted) - {wing.name for wing in WINGS}):
        sys.stderr.write(f"{unknown[0]!r} is no wing: there is {', '.join(wing.name for wing in WINGS)}\n")
        return 2
    holding = 0
    chosen = [wing for wing in WINGS if not wanted or wing.name in wanted]
    for wing in chosen:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"isthmus-without-{wing.name}-") as made:
            log = Path(tempfile.gettempdir()) / f"isthmus-wings-{wing.name}.log"
            log.unlink(missing_ok=True)
            faults, users = judged(wing, Path(made), log)
        holding += not faults
        beside = f", with {', '.join(gone_with(wing.name)[1:])}" if gone_with(wing.name)[1:] else ""
        verdict = "holds" if not faults else "does not hold"
        print(f"{wing.name}{beside}: {verdict}; files of tests of the rest that use it: {users};", end=" ")
        print(f"{time.monotonic() - begun:.0f} s", flush=True)
        for fault in faults:
            print(f"    {fault}")
        if faults:
            print(f"    what it printed: {log}", flush=True)
    if not wanted:
        for name, reason in UNCUT.items():
            print(f"{name}: no wing yet: {reason}")
        print(f"{holding} of {len(WINGS) + len(UNCUT)} hold")
    return 0 if holding == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
