"""What the owner of a machine permits of a user's script, what is missing of it, and what it is."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from isthmus.programs.engine.cluster import machine_file
from isthmus.programs.engine.cluster.permitted_scripts import PermittedScripts, absences, checked_digest, digest
from isthmus.programs.engine.request.reference import called
from isthmus.programs.loop_script import FILE, LOOP, MODULE, PROGRAM, LoopScript
from isthmus.runtime.errors import ConfigError

PYTHON = "/envs/torch/bin/python"


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A folder with scripts, a package, a program, and a link that leads out of it."""
    folder = tmp_path / "lab"
    (folder / "package").mkdir(parents=True)
    (folder / "tools").mkdir()
    for name in ("train.py", "tools/other.py", "package/__init__.py", "package/train.py"):
        (folder / name).write_text("print()\n")
    (tmp_path / "outside.py").write_text("")
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    (folder / "lab-train").write_text("#!/bin/sh\n")
    (folder / "lab-train").chmod(0o755)
    return folder


def permitted(lab: Path, *scripts: str, pythons: tuple[str, ...] = ()) -> PermittedScripts:
    return PermittedScripts.of(scripts, pythons, lab)


def file(lab: Path, name: str = "train.py", folder: str = "", python: str = "") -> LoopScript:
    return LoopScript(str(lab / name), ("--rate", "1"), folder or str((lab / name).parent), python=python)


def test_a_file_runs_where_it_is_listed_in_its_own_folder_or_in_a_listed_one(lab: Path) -> None:
    assert not list(permitted(lab, "train.py").faults(file(lab), "beta"))
    assert not list(permitted(lab, str(lab / "train.py")).faults(file(lab), "beta"))
    assert not list(permitted(lab, ".").faults(file(lab, "tools/other.py", str(lab)), "beta"))
    assert not list(permitted(lab, "train.py", "tools").faults(file(lab, folder=str(lab / "tools")), "beta"))


@pytest.mark.parametrize(
    ("listed", "script", "lacking"),
    [
        ((), "train.py", "LAB/train.py"),
        (("tools",), "train.py", "LAB/train.py"),
        (("train.py",), "tools/other.py", "LAB/tools/other.py"),
        (("trai",), "train.py", "LAB/train.py"),
        ((".",), "link.py", "LAB/link.py"),
    ],
)
def test_another_file_is_refused_with_the_line_that_permits_it(
    lab: Path, listed: tuple[str, ...], script: str, lacking: str
) -> None:
    (fault,) = permitted(lab, *listed).faults(file(lab, script), "beta")
    assert "'beta'" in fault.action
    line = f'scripts = ["{lacking.replace("LAB", str(lab))}"]'
    assert line in fault.remedy
    again = permitted(lab, *listed, lacking.replace("LAB", str(lab)))
    assert not list(again.faults(file(lab, script), "beta")) or script == "link.py"


def test_another_folder_and_another_interpreter_are_refused(lab: Path) -> None:
    (fault,) = permitted(lab, "train.py").faults(file(lab, folder="/tmp", python=PYTHON), "beta")
    assert 'scripts = ["/tmp"]' in fault.remedy
    assert f'pythons = ["{PYTHON}"]' in fault.remedy
    both = permitted(lab, "train.py", "/tmp", pythons=(PYTHON,))
    assert not list(both.faults(file(lab, folder="/tmp", python=PYTHON), "beta"))
    assert list(both.faults(file(lab, python="/envs/torch/bin/../bin/python3"), "beta"))


def test_a_module_needs_its_name_and_its_folder_and_a_program_its_path(lab: Path) -> None:
    module = LoopScript("package.train", (), str(lab), form=MODULE)
    assert not list(permitted(lab, "-m package", ".").faults(module, "beta"))
    assert not list(permitted(lab, "-m package.train", ".").faults(module, "beta"))
    for listed in (("-m package",), (".",), ("-m pack", "."), ("-m package.train.more", ".")):
        assert list(permitted(lab, *listed).faults(module, "beta")), listed
    program = LoopScript(str(lab / "lab-train"), (), str(lab), form=PROGRAM)
    assert not list(permitted(lab, "lab-train", ".").faults(program, "beta"))
    assert list(permitted(lab, ".").faults(program, "beta")), "a folder may have an interpreter in it"


@pytest.mark.parametrize("odd", [{"form": "shell"}, {"ranks": 0}, {"ranks": 10**9}, {"folder": "lab"}])
def test_a_script_that_no_command_sends_is_refused(lab: Path, odd: dict[str, object]) -> None:
    fields = {"script": str(lab / "train.py"), "arguments": [], "folder": str(lab), **odd}
    assert list(permitted(lab, ".").faults(LoopScript.of(fields), "beta"))
    with pytest.raises(ValueError, match="arguments"):
        LoopScript.of({**fields, "arguments": [1]})


def test_a_machine_toml_permits_scripts_for_machines_that_compute_and_for_no_others(lab: Path) -> None:
    text = called(LOOP, file(lab).keywords)
    modules = machine_file.MachineConfig(modules=("isthmus.programs.loop_task",))
    assert list(modules.faults("decoupled-diloco", text, "beta")), "no list of modules permits a script"
    assert not list(modules.faults("decoupled-diloco", text, "beta", computes=False))
    (lab / "machine.toml").write_text('[programs]\nscripts = ["train.py", "-m package"]\npythons = ["/bin/python"]\n')
    config = machine_file.read(lab / "machine.toml")
    assert not list(config.faults("decoupled-diloco", text, "beta"))
    assert not config.refusal_of(file(lab), "beta")
    assert "other.py" in config.refusal_of(file(lab, "tools/other.py"), "beta")
    (lab / "train.py").chmod(0o666)
    with pytest.raises(ConfigError, match=r"programs\.scripts"):
        machine_file.read(lab / "machine.toml")


def test_what_is_missing_of_a_script_is_named(lab: Path) -> None:
    assert not list(absences(file(lab), "beta"))
    missing = LoopScript(str(lab / "none.py"), (), "/no/such/folder", python="/no/python")
    faults = list(absences(missing, "beta"))
    assert [each.found for each in faults] == ["nothing there", "none", "nothing there"]
    assert all("'beta'" in each.action for each in faults)
    (found,) = absences(LoopScript(str(lab), (), str(lab)), "beta")
    assert found.found == "a folder"
    (found,) = absences(LoopScript(str(lab / "train.py"), (), str(lab), form=PROGRAM), "beta")
    assert found.found == "one that cannot be run"
    (lab / "train.py").chmod(0o606)
    assert list(absences(file(lab), "beta"))


@pytest.mark.process
@pytest.mark.slow
def test_an_interpreter_is_asked_whether_it_finds_a_module(lab: Path) -> None:
    (fault,) = absences(LoopScript("package.none", (), str(lab), form=MODULE), "beta")
    assert "package.none" in fault.expected
    both = LoopScript("nowhere.train", (), str(lab), form=MODULE, python=sys.executable)
    assert [each.expected for each in absences(both, "beta")] == ["the module nowhere.train"], "and isthmus is there"


def test_scripts_are_told_apart_by_their_contents(lab: Path) -> None:
    expected = hashlib.sha256(b"print()\n").hexdigest()
    assert digest(file(lab)) == expected
    assert digest(LoopScript("package.train", (), str(lab), form=MODULE)) == expected
    assert digest(LoopScript("json.tool", (), str(lab), form=MODULE)) == ""
    assert checked_digest(called(LOOP, file(lab).keywords), "beta") == expected
    assert checked_digest("mine.py:task", "beta") == ""
    os.remove(lab / "train.py")
    with pytest.raises(ConfigError, match="nothing there"):
        checked_digest(called(LOOP, file(lab).keywords), "beta")
    assert file(lab).form == FILE


@pytest.mark.parametrize(
    ("script", "form", "python"),
    [
        ("-cprint()#/../LAB/train.py", FILE, ""),
        ("-c", FILE, ""),
        ("train.py", FILE, ""),
        ("LAB/none/../train.py", FILE, ""),
        ("LAB/../LAB/train.py", FILE, ""),
        ("//LAB/train.py", FILE, ""),
        ("lab-train", PROGRAM, ""),
        ("LAB/train.py", FILE, "bin/python"),
        ("LAB/train.py", FILE, "/envs/none/../torch/bin/python"),
        ("-c.train", MODULE, ""),
        ("package.-c", MODULE, ""),
        ("package./train", MODULE, ""),
        ("package..train", MODULE, ""),
    ],
)
def test_what_is_started_is_what_was_looked_up(
    lab: Path, script: str, form: str, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lab)
    everything = permitted(lab, ".", "train.py", "lab-train", "-m package", pythons=(PYTHON, str(lab / "bin/python")))
    assert not list(everything.faults(file(lab), "beta"))
    odd = LoopScript(script.replace("LAB", str(lab)), (), str(lab), 1, form, python)
    (fault,) = everything.faults(odd, "beta")
    assert "`..`" in fault.expected
    assert list(everything.faults(LoopScript(str(lab / "train.py"), (), f"{lab}/none/../."), "beta"))
