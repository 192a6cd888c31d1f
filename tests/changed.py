"""`make changed`: the tests that a change can reach.

    python -m tests.changed [--since COMMIT] [-v] [--list] [-- COMMAND...]
    python -m tests.changed --record

What differs from COMMIT, committed or not, is compared with what each file of tests reaches (`tests/import_graph.py`);
COMMAND, which is pytest with its options, is called with the files of tests that reach some of it. Without a commit it
is the one where this branch left `main`, on `main` the last one. With `--list` nothing is called.

A file of tests reaches a Python file that it loads, or that a function loads which it reaches. Beside that:

- of a `conftest.py`, or a plugin of `setup.cfg`, it reaches the fixtures that it asks for, and the modules that are
  named in what runs for each test; a change of the file itself concerns all tests below its folder;
- a test that is marked `process` reaches the command, and what the processes of a run have loaded when that was last
  recorded (`LOADED`; `--record` runs it again);
- a file without Python is reached by who names it: a style sheet by the modules of its package that do, else by all of
  them; a page by the tests that read `docs`; a folder's files by tests that walk it and name it;
- the tests of a wing are reached by all of its folder.

A changed file that no test reaches, as `setup.cfg` is, concerns all tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Final

from tests import import_graph as graphs
from tests.import_graph import (
    EXAMPLES,
    LOAD,
    ImportGraph,
    Node,
    Piece,
    Pieces,
    Reach,
    import_graph,
    module_name,
    pieces_of,
)

ROOT: Final = Path(__file__).resolve().parents[1]
LOADED: Final = Path(__file__).with_name("loaded.json")
"""Kind of process -> the modules that it had loaded, in a run on this machine and in one of a machine's daemon."""
KEPT: Final = ROOT / ".cache" / "changed.pickle"
TOPS: Final = ("runtime", "ops", "programs", "tests", "docs")
WINGS: Final = ("programs/wings/", "tests/programs/wings/")
COMMAND: Final = "isthmus.programs.command.main"
ORDINARY: Final = ("train", "daemon")
"""The commands of which `LOADED` says what they load."""
_TYPED: Final = re.compile(r"^\[*[\w.-]+(?=\]| *=)|(?<!\w)--[\w-]+|\A[\w./:=-]+\Z", re.MULTILINE)
"""What a person types in a text: an option, a key or section of TOML, or all of it, a single word."""
ELSEWHERE: Final = ("tests/torch_tasks/", "tests/engines/")
"""Tests that `make test` does not run, because they want what it does not install."""
NO_TESTS: Final = 5
"""The exit status of pytest where no test has the marks."""


@dataclass(frozen=True, eq=False)
class Tree:
    """The project as it lies there: `sources` of Python files by path, the import names of folders, what the processes
    of a run have loaded, the modules that plugins of pytest are in, and the texts of the pages."""

    sources: Mapping[str, str]
    folders: Mapping[str, str]
    loaded: frozenset[str] = frozenset()
    plugins: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    made: Callable[[str, str], Pieces] = pieces_of
    _unasked: dict[str, set[str]] = field(default_factory=dict)

    @cached_property
    def graph(self) -> ImportGraph:
        return import_graph(self.sources, self.folders, self.made)

    @cached_property
    def tests(self) -> list[TestFile]:
        """All files of tests, in the order of their paths."""
        paths = sorted(path for path in self.sources if _is_test(path))
        return [TestFile(self, path) for path in paths]

    def unasked(self, conftest: str) -> set[str]:
        """The modules that a conftest names in its hooks, its load, and fixtures that every test has."""
        if conftest in self._unasked:
            return self._unasked[conftest]
        pieces, found = self.graph.modules[conftest], self._unasked.setdefault(conftest, set())
        fixtures = [function for function, is_unasked in pieces.fixtures.values() if is_unasked]
        pending, done = [LOAD, *fixtures, *(name for name in pieces.of if name.startswith("pytest_"))], set[str]()
        while pending:
            name = pending.pop()
            if name not in done and name in pieces.of:
                done.add(name)
                for names in pieces.of[name].names:
                    for module, inner in self.graph.named(conftest, pieces.of[name], names):
                        pending += [inner] if module == conftest else []
                        found |= set() if module == conftest else {module}
        return found

    @cached_property
    def commands(self) -> frozenset[Node]:
        """The functions of commands, but those of which it is recorded what they load."""
        return frozenset(
            (module, function)
            for module, pieces in self.graph.modules.items()
            for function, word in pieces.commands.items()
            if word not in ORDINARY
        )

    def module(self, path: str) -> str | None:
        return module_name(path, self.folders)


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and not path.startswith(ELSEWHERE) and PurePosixPath(path).name.startswith("test_")


@dataclass(frozen=True)
class TestFile:
    """A file of tests, and what it reaches."""

    __test__ = False
    tree: Tree
    path: str

    @cached_property
    def module(self) -> str:
        module = self.tree.module(self.path)
        assert module is not None, self.path
        return module

    @cached_property
    def reach(self) -> Reach:
        """What it reaches in its own process."""
        graph, found = self.tree.graph, Reach(self.tree.graph)
        found.add(*graph.whole(self.module))
        found.add(*graph.used(self.module), by=(self.module, LOAD))
        while asked := [each for each in self._fixtures(found) if each not in found.nodes]:
            found.add(*asked, by=(self.module, LOAD))
        return found

    @cached_property
    def started(self) -> Reach:
        """What the processes reach that it starts: what they load in any run (`Tree.loaded`), and from there what the
        test types: a command, or a word in the name of a module, as `metrics` in the option `--metrics-port`. The names
        of its file and of its helpers count as typed, and all that the pages say where it carries them out."""
        graph, loaded = self.tree.graph, self.tree.loaded
        typed = {word for text in self.texts for word in _TYPED.findall(text)} | self._of_tests.keys() | {self.module}
        words = {part for word in typed for part in re.findall(r"[a-z]{4,}", word)}

        def admits(by: Node, node: Node) -> bool:
            is_beyond = by[0] not in loaded or by in self.tree.commands
            return is_beyond or node[0] in loaded or not words.isdisjoint(node[0].rpartition(".")[2].split("_"))

        found = Reach(graph, admits)
        if "process" in graph.modules[self.module].marks:
            found.type(self.reach.typed)
            if "docs" in self.walked:
                found.read(self.tree.pages, (self.module, LOAD))
            found.add(
                (COMMAND, LOAD), (COMMAND, "main"), *((module, LOAD) for module in sorted(loaded & set(graph.modules)))
            )
        return found

    @cached_property
    def touched(self) -> set[str]:
        """The modules whose change it may notice."""
        return self.reach.modules | self.started.modules | self._of_conftests

    @cached_property
    def texts(self) -> set[str]:
        """What it names as a text, or what a helper of the tests does."""
        return {text for piece in self._pieces for text in piece.texts}

    @cached_property
    def walked(self) -> set[str]:
        """The texts of those modules of tests that list folders."""
        walking = {module for module, pieces in self._of_tests.items() if any(piece.walks for piece in pieces)}
        return {text for module in walking for piece in self._of_tests[module] for text in piece.texts}

    @property
    def _pieces(self) -> Iterator[Piece]:
        return chain.from_iterable(self._of_tests.values())

    @cached_property
    def _of_tests(self) -> dict[str, list[Piece]]:
        """The pieces that are reached, of modules of tests."""
        found = defaultdict[str, list[Piece]](list)
        for module, name in self.reach.nodes:
            if (
                module.startswith(("tests.", f"{EXAMPLES}."))
                and (piece := self.tree.graph.modules[module].of.get(name)) is not None
            ):
                found[module].append(piece)
        return found

    @cached_property
    def _above(self) -> list[str]:
        """The modules of each conftest.py above it, and of plugins."""
        folders = PurePosixPath(self.path).parents
        paths = [str(folder / "conftest.py") for folder in folders if str(folder / "conftest.py") in self.tree.sources]
        found = [module for path in paths if (module := self.tree.module(path)) is not None]
        return [*found, *(plugin for plugin in self.tree.plugins if plugin in self.tree.graph.modules)]

    def _fixtures(self, found: Reach) -> Iterator[Node]:
        """The fixtures that are asked for in what is reached: by name of a parameter, or in a text."""
        graph = self.tree.graph
        asked = {text for piece in graph.modules[self.module].of.values() for text in piece.texts}
        for module, name in found.nodes:
            if (module.startswith("tests.") or module in self._above) and name in graph.modules[module].of:
                asked |= graph.modules[module].of[name].parameters
        for module in self._above:
            for word, (fixture, is_unasked) in graph.modules[module].fixtures.items():
                if word in asked and not is_unasked:
                    yield module, fixture

    @cached_property
    def _of_conftests(self) -> set[str]:
        """The modules that these name in what runs for each test: no others, or every test would reach whatever one of
        them happens to load."""
        return {each for module in self._above for each in (module, *self.tree.unasked(module))}


# -- which tests a change concerns -------------------------------------------------------------------------------------


@dataclass
class Chosen:
    """Test file -> why it is run: what it reaches, and by way of which modules. `by_all` are the changed files that
    concern all tests."""

    why: dict[str, list[str]] = field(default_factory=dict)
    by_all: list[str] = field(default_factory=list)


def choose(tree: Tree, changed: Iterable[str]) -> Chosen:
    """The tests that a change of these files concerns."""
    chosen = Chosen()
    for path in sorted(set(changed)):
        concerned = dict(_concerned(tree, path))
        if not concerned or _is_of_all(path):
            chosen.by_all.append(path)
        for test, why in concerned.items():
            chosen.why.setdefault(test, why)
    if chosen.by_all:
        for each in tree.tests:
            chosen.why.setdefault(each.path, [chosen.by_all[0]])
    return chosen


def _is_of_all(path: str) -> bool:
    """Whether a file says how all is built or tested, whoever reads it beside."""
    return "/" not in path and not path.endswith(".md")


def _concerned(tree: Tree, path: str) -> Iterator[tuple[str, list[str]]]:
    """The tests that a changed file concerns, each with the way to it."""
    modules = _modules(tree, path)
    for test in tree.tests:
        if test.path == path:
            yield path, [path]
        elif PurePosixPath(path).name == "conftest.py" and PurePosixPath(test.path).is_relative_to(Path(path).parent):
            yield test.path, [test.path, path]
        elif touched := sorted(modules & test.touched):
            ways = (test.reach.chain(touched[0]), test.started.chain(touched[0]))
            way = ways[0] or (
                [test.module, "a process", *ways[1]] if ways[1] else [test.module, "conftest", touched[0]]
            )
            yield test.path, [*way, path]
        elif _names(test, path) or _is_of_wing(test.path, path):
            yield test.path, [test.path, path]


def _modules(tree: Tree, path: str) -> set[str]:
    """The modules that a change of a file changes: itself, or those that read it."""
    if path.endswith(".py"):
        return {module} if (module := tree.module(path)) is not None else set()
    top, _, _ = path.partition("/")
    if top not in ("runtime", "ops", "programs"):
        return set()
    name = PurePosixPath(path).name
    for folder in PurePosixPath(path).parents:
        beside = [each for each in tree.sources if PurePosixPath(each).parent == folder]
        if beside:
            named = [each for each in beside if name in tree.sources[each]]
            return {module for each in named or beside if (module := tree.module(each)) is not None}
    return set()


def _names(test: TestFile, path: str) -> bool:
    """Whether a test reads a file: it names it, or lists a folder that it names."""
    file = PurePosixPath(path)
    if file.parts[0] == "docs" and any(text == "docs" or text.startswith("docs/") for text in test.texts):
        return True
    if not path.endswith(".py") and any(
        re.search(rf"(?<![\w.-]){re.escape(file.name)}(?!\w)", text) for text in test.texts
    ):
        return True
    return path in test.texts or not test.walked.isdisjoint({str(folder) for folder in file.parents})


def _is_of_wing(test: str, path: str) -> bool:
    code, tests = WINGS
    wing = path.removeprefix(code).partition("/")[0]
    return path.startswith(code) and "/" in path.removeprefix(code) and test.startswith(f"{tests}{wing}/")


# -- the tree and its changes ------------------------------------------------------------------------------------------


def read_tree(root: Path = ROOT, gone: Iterable[str] = (), made: Callable[[str, str], Pieces] = pieces_of) -> Tree:
    """The project in a folder; files that are `gone` count as empty ones, which others may still import."""
    setup = ConfigParser(interpolation=None)
    setup.read(root / "setup.cfg")
    packages = dict(re.findall(r"^([\w.]+) *= *(\S+)$", setup["options"]["package_dir"], re.MULTILINE))
    plugins = re.findall(r"= *([\w.]+)", setup["options.entry_points"].get("pytest11", ""))
    files = sorted(path for top in TOPS for path in root.joinpath(top).rglob("*.py"))
    pages = tuple(path.read_text() for path in (root / "README.md", *sorted(root.joinpath("docs").rglob("*.md"))))
    sources = {path.relative_to(root).as_posix(): path.read_text() for path in files}
    folders = {folder: package for package, folder in packages.items()} | {"tests": "tests", "docs/examples": EXAMPLES}
    missing = {path: "" for path in gone if path.endswith(".py") and path not in sources}
    recorded = json.loads(LOADED.read_text()) if LOADED.exists() else {}
    loaded = frozenset(name for names in recorded.values() for name in names)
    return Tree(sources | missing, folders, loaded, tuple(plugins), pages, made)


class KeptPieces:
    """The pieces of files, kept in a file, because most of them are as they were: to read all takes seconds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._rules = Path(graphs.__file__).read_bytes()
        self._known: dict[bytes, Pieces] = pickle.loads(file.read_bytes()) if file.exists() else {}
        self._used: dict[bytes, Pieces] = {}

    def __call__(self, source: str, package: str) -> Pieces:
        key = hashlib.sha256(b"\0".join((self._rules, package.encode(), source.encode()))).digest()
        found = self._used[key] = self._known.get(key) or pieces_of(source, package)
        return found

    def keep(self) -> None:
        """Write those that were asked for, if any of them is new."""
        if self._used.keys() != self._known.keys():
            self._file.parent.mkdir(exist_ok=True)
            part = self._file.with_suffix(f".{os.getpid()}")
            part.write_bytes(pickle.dumps(self._used))
            part.replace(self._file)


def changed_since(commit: str | None, root: Path = ROOT) -> list[str]:
    """The paths that differ from a commit: those that are gone, and new ones that git does not ignore, are there, too.

    ValueError for no commit of this repository.
    """
    since = commit or _default(root)
    try:
        differing = _git(root, "diff", "--name-only", "--no-renames", "-z", since, "--")
    except subprocess.CalledProcessError as error:
        raise ValueError(
            f"Comparing with {since}: expected a commit of this repository, found {error.stderr.strip()}. "
            "Name one, as in `make changed SINCE=HEAD~1`."
        ) from None
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({path for path in (differing + new).split("\0") if path})


def _default(root: Path) -> str:
    """Where this branch left `main`; the last commit on `main`, or without one."""
    if _git(root, "rev-parse", "--abbrev-ref", "HEAD").strip() == "main":
        return "HEAD"
    try:
        return _git(root, "merge-base", "main", "HEAD").strip()
    except subprocess.CalledProcessError:
        return "HEAD"


def _git(root: Path, *words: str) -> str:
    return subprocess.run(("git", *words), cwd=root, capture_output=True, text=True, check=True).stdout


# -- what processes load -----------------------------------------------------------------------------------------------

_HOOK: Final = """
import os, sys
def _note(event, arguments, root={root!r}, folder={folder!r}, write=os.write, open=os.open, close=os.close):
    if event == "exec" and (file := getattr(arguments[0], "co_filename", "")).startswith(root):
        with_title = open("/proc/self/cmdline", os.O_RDONLY)
        title = os.read(with_title, 4000)
        close(with_title)
        notes = open(f"{{folder}}/{{os.getpid()}}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        write(notes, title.replace(bytes(1), b" ").strip() + b"\\t" + file[len(root):].encode() + b"\\n")
        close(notes)
sys.addaudithook(_note)
"""
"""Notes the title of a process, or of one that it forks, and each file of ours that it loads, whoever asks for it."""
_KINDS: Final = (
    "daemon_process", "fork_server", "plain_server", "plans", "preparer",
    "learner", "syncer", "evaluator", "recorder", "finish",
)  # fmt: skip
"""Kinds of processes by a word of their titles; a host that is forked has what its fork server has, beside its own."""


def record() -> dict[str, list[str]]:
    """What the processes of two short runs load, by kind: one run is on this machine, one in a machine's daemon."""
    from tests.programs.engine.machine.daemon_place import MachineDaemon, Place

    with tempfile.TemporaryDirectory() as name:
        notes, work = Path(name, "notes"), Path(name, "work")
        for folder in (notes, work):
            folder.mkdir()
        Path(name, "sitecustomize.py").write_text(_HOOK.format(root=f"{ROOT}/", folder=str(notes)))
        place = Place(work)
        place.environment["PYTHONPATH"] = name
        try:
            place.call(*place.training("here", "--transport", "zmq", tokens=20_000))
            daemon = MachineDaemon(place)
            place.call(*place.training("there", "--cluster", daemon.cluster, tokens=20_000))
            daemon.end()
        finally:
            place.close()
        return by_kind(
            read_tree(), (line for file in sorted(notes.iterdir()) for line in file.read_text().splitlines())
        )


def by_kind(tree: Tree, notes: Iterable[str]) -> dict[str, list[str]]:
    """The modules, sorted, by the kind of process that its title names, of lines with title and file."""
    found: dict[str, set[str]] = {}
    for line in notes:
        title, _, path = line.rpartition("\t")
        words = re.findall(r"\w+", title.replace("-", "_"))
        kind = next((kind for kind in _KINDS if kind in words), "machine" if "daemon" in words else "command")
        if (module := tree.module(path)) is not None and path in tree.sources:
            found.setdefault(kind, set()).add(module)
    return {kind: sorted(modules) for kind, modules in sorted(found.items())}


# -- the command -------------------------------------------------------------------------------------------------------


def told(tree: Tree, changed: Sequence[str], chosen: Chosen, *, is_long: bool) -> str:
    """What is said of the choice."""
    why = f"because {', '.join(chosen.by_all)} concerns all" if chosen.by_all else f"that {len(changed)} files concern"
    lines = [f"{len(chosen.why)} of {len(tree.tests)} files of tests, {why}"]
    if is_long:
        lines += [f"    {test}: {' > '.join(way)}" for test, way in sorted(chosen.why.items())]
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Run the tests; the exit status, 2 for a wrong request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", default=os.environ.get("SINCE") or None)
    parser.add_argument("-v", "--verbose", action="store_true", help="why each file is run")
    parser.add_argument("--list", action="store_true", help="print the files, and run none")
    parser.add_argument("--record", action="store_true", help="record anew what the processes of a run load")
    parser.add_argument("command", nargs="*", help="what runs the tests, after `--`")
    asked = parser.parse_args(words)
    if asked.record:
        LOADED.write_text(json.dumps(record(), indent=1) + "\n")
        return 0
    try:
        changed = changed_since(asked.since)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    kept = KeptPieces(KEPT)
    tree = read_tree(gone=changed, made=kept)
    chosen = choose(tree, changed)
    kept.keep()
    if asked.list:
        print("\n".join(sorted(chosen.why)))
        return 0
    print(told(tree, changed, chosen, is_long=asked.verbose), flush=True)
    there = [each for each in sorted(chosen.why) if ROOT.joinpath(each).exists()]
    if not there:
        return 0
    status = subprocess.run([*asked.command, *([] if chosen.by_all else there)], cwd=ROOT, check=False).returncode
    return 0 if status == NO_TESTS else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
