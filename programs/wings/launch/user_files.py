"""The user's own files of a launch, on engines whose machines share no folder with the launcher: they travel by name.

Decides which they are, the code of the request among them, and how sections name them where they lie beside the
cluster file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from isthmus.programs.command.loop_choice import LOOP_SECTION
from isthmus.programs.wings.launch.engine import PrintedFile
from isthmus.programs.wings.launch.folder import LOCK, NOTE, RUN
from isthmus.programs.wings.launch.launch_file import HOME, ISLAND, LaunchRequest
from isthmus.runtime.errors import Fault

_NAME: Final = re.compile(r"[-._a-zA-Z0-9]+")
_SECRETS: Final = (f"{HOME}.key", f"{HOME}.pub", f"{HOME}.admitted", "island.invite")
_TAKEN: Final = (*_SECRETS, NOTE, LOCK, RUN, HOME, "state")
"""Names of the folder of a launch, or of a machine, whatever the engine."""


def paths(request: LaunchRequest) -> list[Path]:
    """The files: those of the program and the task, or of the script where it is here, and `launch.files`."""
    is_there = request.table.is_there_only
    modules = [Path(module) for module in request.modules if Path(module).is_absolute() and not is_there(module)]
    script = request.sections.get(LOOP_SECTION, {}).get("script", "")
    is_here = script.endswith(".py") and not is_there(script) and Path(script).is_file()
    scripts = [Path(script)] if is_here else []
    return list(dict.fromkeys([*modules, *scripts, *map(Path, request.table.files)]))


def placed(request: LaunchRequest, folder: str = "") -> LaunchRequest:
    """The request as machines have it that have the files in `folder`, which is empty or ends with a slash. A script
    for which no folder was named runs in that one, or in its own where the machines have it already."""
    there = {str(path): f"{folder}{path.name}" for path in paths(request)}

    def moved(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [moved(each) for each in value]
        path = next((path for path in there if value == path or str(value).startswith(f"{path}:")), None)
        return value if path is None else there[path] + value.removeprefix(path)

    sections = {
        section: {key: moved(value) for key, value in table.items()} for section, table in request.sections.items()
    }
    if LOOP_SECTION in sections and not request.names_folder:
        script = sections[LOOP_SECTION]["script"]
        is_there = script.endswith(".py") and script.startswith("/")
        sections[LOOP_SECTION]["folder"] = os.path.dirname(script) if is_there else folder or "."
    return replace(request, sections=sections, modules=tuple(map(moved, request.modules)))


def copies(request: LaunchRequest) -> list[PrintedFile]:
    """The files, to be printed."""
    return [PrintedFile(path.name, path.read_text(encoding="utf-8")) for path in paths(request)]


def faults(request: LaunchRequest, bytes_max: int, taken: Sequence[str]) -> Iterator[Fault]:
    """Why files cannot travel as texts of at most `bytes_max` together; names that are `taken` are the launch's own."""
    doing, names, size = "Reading launch.files", {*taken, *_TAKEN}, 0
    for path in paths(request):
        is_free = path.name not in names and not path.name.startswith(ISLAND)
        if not path.is_file() or not _NAME.fullmatch(path.name) or not is_free:
            do = "Put folders and large files where the machines have them; the others travel into one folder."
            yield Fault(doing, "files with names of their own, of letters, digits, '.', '_' and '-'", str(path), do)
            continue
        names.add(path.name)
        size += path.stat().st_size
        try:
            path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            yield Fault(doing, "a text in UTF-8", f"{path}: {error}", "Put it where the machines have it.")
    if size > bytes_max:
        yield Fault(doing, f"at most {bytes_max} bytes", f"{size}", "Put large files where the machines have them.")
