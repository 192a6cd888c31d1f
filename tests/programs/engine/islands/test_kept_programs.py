"""Who compiles a program, of processes that share the folders of a machine: threads stand for them here."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from isthmus.ops.island.compiling import LoweredProgram
from isthmus.programs.engine.islands import kept_programs
from isthmus.programs.engine.islands.kept_programs import CompiledOnce, CompiledProgram, prune
from isthmus.runtime.system import json_lines
from isthmus.runtime.system.locks import FileLock
from tests.patience import PATIENCE


class Jax:
    """A compiler that keeps files as jax does."""

    def __init__(self, folder: Path, version: str = "1.0", device: str = "1 x made") -> None:
        self.folder, self.jax, self.device = folder, version, device
        self.made = self.misses = self.hits = 0
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def program(self, name: str, *, waits: bool = False, is_kept: bool = True, is_had: bool = False) -> LoweredProgram:
        return LoweredProgram(name, _Lowered(self, name, waits=waits, is_kept=is_kept, is_had=is_had))


class _Lowered:
    def __init__(self, jax: Jax, name: str, *, waits: bool, is_kept: bool, is_had: bool) -> None:
        self._jax, self._name, self._waits, self._is_kept, self._is_had = jax, name, waits, is_kept, is_had

    def as_text(self) -> str:
        return f"module @jit_{self._name} attributes {{}}"

    def compile(self) -> None:
        if self._is_had:
            return
        self._jax.made += 1
        kept = self._jax.folder / f"jit_{self._name}-{self._jax.jax}-cache"
        if kept.exists():
            assert kept.read_text() == "whole"
            self._jax.hits += 1
            return
        if self._waits:
            self._jax.begun.set()
            assert self._jax.goes_on.wait(PATIENCE)
        if self._is_kept:
            self._jax.misses += 1
            kept.write_text("whole")


class Machine:
    """The folders of a machine, and what its processes have told."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.notes = folder / "xla", folder / "notes"
        self.programs.mkdir()
        self.told: list[CompiledProgram] = []

    def way(self, jax: Jax, name: str) -> CompiledOnce:
        return CompiledOnce(self.programs, self.notes, jax, name, self.told.extend)

    def by(self, name: str) -> dict[str, tuple[str, str]]:
        return {each.function: (each.way, each.by) for each in self.told if each.process == name}

    def note(self) -> Path:
        (path,) = self.notes.glob("*.json")
        return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def nobody(function: str, awaits: str) -> None:
    pass


def test_one_compiles_and_the_other_compiles_the_rest_then_waits_and_reads(machine: Machine) -> None:
    first, second = Jax(machine.programs), Jax(machine.programs)
    first.goes_on.clear()
    awaited = threading.Event()

    def tell(function: str, awaits: str) -> None:
        if awaits:
            assert (function, awaits) == ("step", "learner/0")
            awaited.set()
            first.goes_on.set()

    ours = [first.program("step", waits=True), first.program("adopt")]
    one = threading.Thread(target=machine.way(first, "learner/0").compile, args=(ours, nobody))
    one.start()
    assert first.begun.wait(PATIENCE)
    machine.way(second, "learner/1").compile([second.program("step"), second.program("adopt")], tell)
    one.join(PATIENCE)
    assert awaited.is_set()
    assert machine.by("learner/0") == {"step": ("compiled", ""), "adopt": ("read", "")}
    assert machine.by("learner/1") == {"adopt": ("compiled", ""), "step": ("read", "learner/0")}
    assert (first.misses, second.misses) == (1, 1)


@pytest.mark.parametrize("was_there", [False, True])
def test_kept_programs_are_read_without_a_lock(machine: Machine, *, was_there: bool) -> None:
    jax = Jax(machine.programs)
    if was_there:  # Before its note: jax of an earlier version of isthmus kept it.
        (machine.programs / "jit_step-1.0-cache").write_text("whole")
    machine.way(jax, "learner/0").compile([jax.program("step")], nobody)
    with machine.note().open("rb") as held:
        lock = FileLock(held.fileno(), machine.note())
        assert lock.take()
        before = machine.note().read_text()
        machine.way(jax, "learner/1").compile([jax.program("step")], nobody)
        lock.release()
    assert machine.by("learner/1") == {"step": ("read", "")}
    assert machine.note().read_text() == before


def test_what_a_process_has_called_before_is_no_program_that_jax_does_not_keep(machine: Machine) -> None:
    first, second = Jax(machine.programs), Jax(machine.programs)
    machine.way(first, "learner/0").compile([first.program("fresh", is_had=True)], nobody)
    assert machine.by("learner/0") == {"fresh": ("had", "")}
    machine.way(second, "learner/1").compile([second.program("fresh")], nobody)
    assert machine.by("learner/1") == {"fresh": ("compiled", "")}
    assert second.misses == 1
    machine.way(first, "learner/2").compile([first.program("fresh")], nobody)
    assert machine.by("learner/2") == {"fresh": ("read", "")}


def test_of_a_program_that_was_there_before_its_note_it_is_not_known_for_ever(machine: Machine) -> None:
    first, second = Jax(machine.programs), Jax(machine.programs)
    (machine.programs / "jit_step-1.0-cache").write_text("whole")
    machine.way(first, "learner/0").compile([first.program("step")], nobody)
    assert machine.by("learner/0") == {"step": ("read", "")}
    prune(machine.programs, machine.notes, bytes_max=0)
    first.goes_on.clear()
    ours = [first.program("step", waits=True)]
    one = threading.Thread(target=machine.way(first, "learner/0").compile, args=(ours, nobody))
    one.start()
    assert first.begun.wait(PATIENCE)

    def tell(function: str, awaits: str) -> None:
        if awaits:
            first.goes_on.set()

    machine.way(second, "learner/1").compile([second.program("step")], tell)
    one.join(PATIENCE)
    assert machine.by("learner/1") == {"step": ("read", "learner/0")}


def test_what_jax_does_not_keep_nobody_waits_for(machine: Machine) -> None:
    first, second = Jax(machine.programs), Jax(machine.programs)
    machine.way(first, "learner/0").compile([first.program("step", is_kept=False)], nobody)
    assert machine.by("learner/0") == {"step": ("compiled", "")}
    first.goes_on.clear()
    ours = [first.program("step", waits=True, is_kept=False)]
    one = threading.Thread(target=machine.way(first, "learner/0").compile, args=(ours, nobody))
    one.start()
    assert first.begun.wait(PATIENCE)
    machine.way(second, "learner/1").compile([second.program("step", is_kept=False)], nobody)
    assert machine.by("learner/1") == {"step": ("compiled", "")}
    first.goes_on.set()
    one.join(PATIENCE)


def test_what_a_process_left_half_written_as_it_was_killed_is_compiled_again(machine: Machine) -> None:
    jax = Jax(machine.programs)
    machine.way(jax, "learner/0").compile([jax.program("step")], nobody)
    noted = json.loads(machine.note().read_text())
    torn = machine.programs / noted["file"]
    machine.note().write_text(json.dumps({**noted, "seconds": None, "file": ""}))
    torn.write_text("wh")
    machine.way(jax, "learner/0").compile([jax.program("step")], nobody)
    assert (torn.read_text(), jax.misses) == ("whole", 2)
    assert json.loads(machine.note().read_text())["file"] == torn.name


def test_a_program_that_was_removed_is_compiled_by_one_again(machine: Machine) -> None:
    jax = Jax(machine.programs)
    machine.way(jax, "learner/0").compile([jax.program("step")], nobody)
    prune(machine.programs, machine.notes, bytes_max=0)
    assert not list(machine.programs.iterdir())
    machine.way(jax, "learner/1").compile([jax.program("step")], nobody)
    assert machine.by("learner/1") == {"step": ("compiled", "")}


def test_a_learner_that_waits_too_long_compiles_by_itself(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Jax(machine.programs), Jax(machine.programs)
    first.goes_on.clear()
    monkeypatch.setattr(kept_programs, "AWAIT_SECONDS_MAX", 0.0)
    ours = [first.program("step", waits=True)]
    one = threading.Thread(target=machine.way(first, "learner/0").compile, args=(ours, nobody))
    one.start()
    assert first.begun.wait(PATIENCE)
    machine.way(second, "learner/1").compile([second.program("step")], nobody)
    assert machine.by("learner/1") == {"step": ("compiled", "")}
    first.goes_on.set()
    one.join(PATIENCE)


def test_programs_of_another_jax_or_device_are_left_aside_and_told(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {"xla": machine.programs, kept_programs.NOTES: machine.notes}
    monkeypatch.setattr(kept_programs, "cache_folder", folders.get)
    for version, device in (("1.0", "1 x made"), ("0.9", "1 x made"), ("1.0", "2 x card")):
        jax = Jax(machine.programs, version, device)
        machine.way(jax, "learner/0").compile([jax.program("step")], nobody)
    kept: Any = kept_programs.kept_programs(machine.told[:1])
    assert kept.others == ((("0.9", "1 x made"), 1), (("1.0", "2 x card"), 1))
    assert kept.programs == 2  # The made jax keeps those of both devices in one file.


def test_beyond_the_bound_the_programs_that_nobody_used_for_longest_are_removed(machine: Machine) -> None:
    for at in range(8):
        path = machine.programs / f"jit_{at}-cache"
        path.write_bytes(b"0" * 100)
        os.utime(path, (at, at))
    assert prune(machine.programs, machine.notes, bytes_max=800) == 0
    assert prune(machine.programs, machine.notes, bytes_max=799) == 3
    assert sorted(path.name for path in machine.programs.iterdir()) == [f"jit_{at}-cache" for at in range(3, 8)]


def test_a_record_is_read_back(tmp_path: Path) -> None:
    told = CompiledProgram("learner/0", 1, "step", "compiled", 13.2, "", 0.0, "1.0", "1 x made")
    record = tmp_path / kept_programs.RECORD
    json_lines.append(record, told)
    record.write_text(record.read_text() + "[torn\n")
    assert list(kept_programs.read_compiled(tmp_path)) == [told]
    assert list(kept_programs.read_compiled(tmp_path / "none")) == []
