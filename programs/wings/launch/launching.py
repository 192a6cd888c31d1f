"""Launches, scales, shows and ends what stands in a launch folder, by whichever engine it names."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from isthmus.programs.wings.launch import engine
from isthmus.programs.wings.launch.engine import LaunchState, PrintedFile
from isthmus.programs.wings.launch.folder import LOCK, NOTE, RUN, Launch, folder_for
from isthmus.programs.wings.launch.launch_file import LaunchRequest
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import put_bytes, write_bytes
from isthmus.runtime.system.refusals import remedy

DONE: Final = "done"


def show(name: str, request: LaunchRequest, to: Path | None) -> str:
    """What would be submitted, as a text, or written to the folder `to`; ConfigError if it cannot be written."""
    chosen = engine.engine_of(name)
    files = chosen.files(request)
    if to is None:
        public = [f"# --- {file.name}\n{file.text.rstrip()}" for file in files if not file.is_secret]
        return "\n".join([*public, f"# --- submitted in a folder with these files by\n# {chosen.by_hand(request)}"])
    _write(files, to.absolute())
    names = ", ".join(file.name for file in files)
    return f"{to}: {names}. Submit them by\n    cd {typed(to)} && {chosen.by_hand(request)}"


def launch(name: str, request: LaunchRequest, to: Path | None) -> str:
    """Submit a launch; returns the text to print. ConfigError with all faults, and nothing left."""
    chosen, folder = engine.engine_of(name), folder_for(request.name, to)
    doing = f"Launching {request.name}"
    faults = list(chosen.faults(request, folder))
    if faults:
        raise ConfigError.of(faults)
    note = Launch.of(name, request, folder)
    with note.busy():  # What is seen here holds until it is submitted, whoever else launches the file.
        is_new = [path.name for path in folder.iterdir()] == [LOCK]
        try:
            _check_free(note, chosen.state(note), doing)
            _write(chosen.files(request), folder)
            note.write()
            chosen.submit(note)
        except BaseException:
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    shown = typed(os.path.relpath(folder))
    prepared = "prepared   there, by the home: it has what launch.on_machines names\n" if request.is_for_home else ""
    return (
        f"{request.name} is submitted to {name}: a home and {_islands(request.islands)}, in {shown}\n{prepared}"
        f"watch it   isthmus launch status --to {shown}\n"
        f"end it     isthmus launch down --to {shown}"
    )


def scale(note: Launch, islands: int) -> str:
    """Bring a launch to so many islands; ConfigError if its run is over, or does not take so many."""
    chosen, doing = engine.engine_of(note.engine), f"Scaling {note.name}"
    if not 1 <= islands <= note.slots_max:
        do = "To end it: isthmus launch down."
        raise ConfigError(doing, f"from 1 to {note.slots_max} islands, run.slots_max", str(islands), do)
    with note.busy():
        state = chosen.state(note)
        if state.outcome == DONE or not state.has_home:
            do = f"Launch it again: isthmus launch {note.engine} FILE --islands {islands}"
            if state.outcome == DONE:
                do = "It has trained all its tokens; another launch of the file needs another folder, --to."
            found = f"one that is {state.outcome or 'not there'}"
            raise ConfigError(doing, "a run that goes on", found, do)
        chosen.scale(note, islands)
        note.with_islands(islands)
    return f"{note.name}: {_islands(islands)}"


def state_of(note: Launch) -> LaunchState:
    """What there is of a launch, the home first; ConfigError if the engine is not there."""
    state = engine.engine_of(note.engine).state(note)
    order = sorted(state.machines, key=lambda machine: (not machine.is_home, len(machine.name), machine.name))
    return replace(state, machines=order)


def down(note: Launch) -> str:
    """Free whatever a launch has on its engine; returns the text to print."""
    chosen = engine.engine_of(note.engine)
    state = chosen.down(note)
    count = len(state.machines)
    told = f"{note.name}: nothing is left on {note.engine}, of {count} before; its files are in {note.folder}"
    return "\n".join(filter(None, (told, state.keeps)))


def typed(path: Path | str) -> str:
    """A path as a shell takes it for a word that is no option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def _check_free(note: Launch, state: LaunchState, doing: str) -> None:
    """ConfigError if there is something of that launch, or its run is over, or was asked for otherwise."""
    folder = note.folder
    if state.outcome == DONE and not state.has_home:
        do = "Name another folder with --to, or take that one away."
        raise ConfigError(doing, "a run that is not over", f"that of {folder}, which is done", do)
    _check_same(note, doing)
    if machines := state.machines:
        do = f"End it first: isthmus launch down --to {typed(folder)}"
        if not (folder / NOTE).exists():
            do = f"It was submitted by hand. End it by commands of {note.engine}, or give the file another name."
        raise ConfigError(doing, "nothing of that name", ", ".join(f"{each.name} ({each.id})" for each in machines), do)


def _check_same(note: Launch, doing: str) -> None:
    """ConfigError if a run that is in the folder was asked for otherwise: it goes on as it was."""
    if not (note.folder / RUN).exists() or not (note.folder / NOTE).exists():
        return
    # As JSON has them: what is a tuple here is a list there.
    former, asked = Launch.read(note.folder).asked, json.loads(json.dumps(note.asked))
    keys = [key for key in {**former, **asked} if former.get(key) != asked.get(key)]
    if keys:
        do = "Ask for what it was, or name another folder with --to."
        key = keys[0]
        value = f"{key} = {former[key]!r}" if key in former else f"nothing about {key}"
        expected = f"{value}, as the run in {note.folder} was asked for"
        raise ConfigError(doing, expected, repr(asked[key]) if key in asked else "nothing about it", do)


def _islands(count: int) -> str:
    return f"{count} island{'' if count == 1 else 's'}"


def _write(files: Sequence[PrintedFile], folder: Path) -> None:
    """Write the files; a secret one is at no time readable by others. ConfigError if that fails."""
    try:
        _remove_former(files, folder)
        for file in files:
            path = folder / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.is_secret:
                put_bytes(path, file.text.encode(), mode=0o600)
            else:
                write_bytes(path, file.text.encode())
    except OSError as error:
        do = "Name another folder with --to."
        raise ConfigError(f"Writing to {folder}", "to write", str(error), remedy(error, do)) from None


def _remove_former(files: Sequence[PrintedFile], folder: Path) -> None:
    """Take away what a launch of more islands has left in folders whose files are submitted together. It has the first
    line of a file that is written now."""
    written = {folder / file.name: file.text.partition("\n")[0] for file in files if "/" in file.name}
    for path in [each for parent in {path.parent for path in written} for each in parent.glob("*")]:
        if path not in written and path.is_file():
            with path.open(encoding="utf-8", errors="replace") as file:
                is_ours = file.readline().rstrip("\n") in written.values()
            if is_ours:
                path.unlink()
