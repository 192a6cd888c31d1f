"""The files that a run is made of, with their digests: by them a resume says what has changed since, file by file.

Decides which these are: all of isthmus; the user's file that has the program; and, of the task, the file or script that
a reference names with the user's other files below its folder that preparing the request has imported, such as that of
a data loader. Libraries are not among them, and no data.

They are in a file of their own in the run folder, because no host reads them: whether hosts agree is asked by the
fingerprint, which has only what a graph depends on, and no file of a task.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from isthmus.programs import SHIPPED
from isthmus.programs.engine.request import reference, spec
from isthmus.programs.engine.request.slot_tasks import references_of
from isthmus.programs.engine.request.spec import SOURCES
from isthmus.programs.engine.results.alterations import FileChange, Part, named
from isthmus.programs.loop_script import MODULE
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import read_bytes, write_json
from isthmus.runtime.system.user_files import is_users

if TYPE_CHECKING:  # A machine's daemon loads nothing that trains.
    from isthmus.ops.exchange.fragments import Fragment

FILE: Final = SOURCES
_DIGITS: Final = 16
_OWN: Final[Part] = "isthmus"


class Sources(msgspec.Struct, frozen=True):
    """The sources of a run."""

    isthmus: str
    """Its version."""
    files: dict[Part, dict[str, str]]
    """Part -> file -> digest: of isthmus relative to its folder, of others the path."""
    fragments: str = ""
    """A digest of which unit of the model is in which fragment; '' where whole trees are exchanged."""

    def without_task(self) -> dict[str, dict[str, str]]:
        """Those on which the decisions of cores depend."""
        return {part: files for part, files in self.files.items() if part != "task"}


def of_now(program: str, task: str = "", fragments: Sequence[Fragment] = ()) -> Sources:
    """The sources of a program and a task, by their references, as this process has imported them; without a task,
    those on which the decisions of cores depend."""
    files: dict[Part, dict[str, str]] = {_OWN: own_files()}
    files["program"] = _digests(_named([program]))
    of_task = _named(references_of(task) if task else ())
    files["task"] = _digests([*of_task, *_imported(of_task)])
    return Sources(metadata.version(_OWN), files, _partition(fragments))


def own_files() -> dict[str, str]:
    """The digest of each file of isthmus."""
    found = {}
    for folder in reference.OWN_FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            found[str(path.relative_to(folder.parent))] = _digest(path)
    return found


def load(folder: Path) -> Sources | None:
    """Those in a run folder; None where they were not noted. ValueError for a file of another form."""
    try:
        return msgspec.json.decode(read_bytes(folder / FILE), type=Sources)
    except FileNotFoundError:
        return None


def write(folder: Path, sources: Sources) -> None:
    """Note them in a run folder."""
    write_json(folder / FILE, msgspec.to_builtins(sources))


def differences(before: Sources, now: Sources) -> list[FileChange]:
    """The files that differ. A user's file that only one of two processes has imported differs by its content alone:
    which of them are imported depends on who asks."""
    return [change for part, files in before.files.items() for change in _of_part(part, files, now.files.get(part, {}))]


def changed(folder: Path) -> list[FileChange]:
    """The files that differ by now from those that were noted in a run folder, by their contents on this disk; none
    where none were noted. Nothing of the user's is imported, nor looked for among modules."""
    noted = load(folder)
    if noted is None:
        return []
    return differences(noted, Sources(noted.isthmus, {_OWN: own_files()}, noted.fragments))


def check_unaltered(folder: Path, doing: str) -> None:
    """ConfigError if files differ from those that a run of a cluster was begun with: the user's, or those of isthmus by
    which hosts tell one graph from another, and would all refuse to begin."""
    places = _of_graph(spec.load(folder).job.program)
    if files := [each for each in changed(folder) if each.part != _OWN or each.file.startswith(places)]:
        do = f"Undo that; or go on with them from here: {on_machines(folder)}."
        raise ConfigError(doing, "the files that it was begun with", f"others now{named(files)}", do)


def told_if_changed(folder: Path) -> str:
    """A line for whoever supervises a run from now on: which files differ, of which next lives are; '' if none."""
    files = changed(folder)
    return f"next lives are of other files than those that it was begun with{named(files)}" if files else ""


def _of_graph(program: str) -> tuple[str, ...]:
    """The beginnings of the files of isthmus that the fingerprint of a program's graph is made of (`fingerprint`)."""
    module = SHIPPED.get(program, "").partition(":")[0].removeprefix(f"{_OWN}.").split(".")
    wing = module[:3] if "wings" in module else []
    return (*(("/".join((*wing, "")),) if wing else ()), f"{'/'.join(module)}.py", "ops/")


def on_machines(folder: Path) -> str:
    """The command by which the run of a cluster in a folder goes on with changes."""
    own = "where its daemon has --run, --accept-changes beside --resume-or-start"
    return f"type on its home isthmus train --resume {folder} --cluster FILE --accept-changes; {own}"


def _of_part(part: Part, before: dict[str, str], now: dict[str, str]) -> Iterator[FileChange]:
    for file, digest in before.items():
        found = now.get(file) or ("" if part == _OWN else _digest(Path(file)) or _moved(file, digest, now))
        if found != digest:
            yield FileChange(part, file, digest, found)
    if part == _OWN:
        yield from (FileChange(part, file, "", digest) for file, digest in now.items() if file not in before)


def _moved(file: str, digest: str, now: dict[str, str]) -> str:
    """The digest of a file that is as it was in another folder, as on another machine; '' where there is none."""
    is_there = any(Path(other).name == Path(file).name and found == digest for other, found in now.items())
    return digest if is_there else ""


def _named(references: Iterable[str]) -> list[Path]:
    """The user's files that references name."""
    found = []
    for text in references:
        if (script := reference.script_of(text)) is not None:
            place = Path(script.folder, *script.script.split(".")) if script.form == MODULE else Path(script.script)
            found += [place.with_name(f"{place.name}.py"), place / "__main__.py"] if script.form == MODULE else [place]
            continue
        where, rest = reference.split(text)
        if rest and reference.is_file(where):
            found.append(Path(where))
        elif rest and (origin := _origin(where)) is not None:
            found.append(origin)
    return [path for path in found if path.is_file() and is_users(str(path))]


def _origin(module: str) -> Path | None:
    """The file of a module."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    try:
        found = loaded or getattr(find_spec(module), "origin", None)
    except (ImportError, ValueError):
        return None
    return Path(found) if found else None


def _imported(paths: Sequence[Path]) -> Iterator[Path]:
    """The user's files below the folders of those that are named, which this process has imported."""
    folders = {path.parent for path in paths}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_users(file):
            path = Path(file)
            if any(path.is_relative_to(folder) for folder in folders):
                yield path


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    return {str(path): _digest(path) for path in sorted(dict.fromkeys(paths))}


def _digest(path: Path) -> str:
    """SHA-256 of a file; '' where there is none that can be read."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()[:_DIGITS]
    except OSError:
        return ""


def _partition(fragments: Sequence[Fragment]) -> str:
    units = [[unit.name for unit in fragment.units] for fragment in fragments]
    return hashlib.sha256(json.dumps(units).encode()).hexdigest()[:_DIGITS] if units else ""


def of_former(data: object) -> Sources | None:
    """Those that were kept beside a former spec; None where there are none."""
    return None if data is None else msgspec.convert(data, Sources)
