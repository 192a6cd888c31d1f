"""The script that [loop] of a file names, and what a run of it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.command import config
from isthmus.programs.command.loop_choice import LoopChoice, table_of
from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.request.reference import script_of
from isthmus.programs.loop_script import FILE, MODULE, PROGRAM, LoopScript
from isthmus.runtime.errors import ConfigError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    for name in ("train.py", "code/other.py", "lab-train"):
        (tmp_path / name).write_text("")
    (tmp_path / "lab-train").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("table", "script"),
    [
        ({"script": "train.py"}, LoopScript("HERE/train.py", (), "HERE")),
        (
            {"script": "code/other.py", "arguments": ["--rate", "1"], "folder": "code", "ranks": 2},
            LoopScript("HERE/code/other.py", ("--rate", "1"), "HERE/code", 2),
        ),
        (
            {"script": "-m lab.train", "python": "./lab-train"},
            LoopScript("lab.train", (), "HERE", form=MODULE, python="HERE/lab-train"),
        ),
        ({"script": "./lab-train"}, LoopScript("HERE/lab-train", (), "HERE", form=PROGRAM)),
    ],
)  # fmt: skip
def test_a_table_names_a_script_from_its_files_folder(place: Path, table: dict[str, Any], script: LoopScript) -> None:
    found = script_of(LoopChoice.of_table(table, place / "run.toml", is_here=True).reference)
    assert found is not None
    moved = LoopScript.of({key: _moved(value, place) for key, value in script.keywords.items()})
    assert found == moved
    assert script_of(LoopChoice.of_table(table_of(found), Path("/x/run.toml"), is_here=True).reference) == found


def _moved(value: Any, place: Path) -> Any:
    return value.replace("HERE", str(place)) if isinstance(value, str) else value


def test_a_script_that_only_other_machines_have_is_named_by_its_whole_path(place: Path) -> None:
    def of(named: str, *, is_here: bool) -> LoopScript | None:
        return script_of(LoopChoice.of_table({"script": named}, place / "run.toml", is_here=is_here).reference)

    there = of("/srv/lab/train.py", is_here=False)
    assert (there and there.script, there and there.form) == ("/srv/lab/train.py", FILE)
    for named, is_here in (("/srv/lab/train.py", True), ("trian.py", False), ("no-such-program", False)):
        with pytest.raises(ConfigError, match="nothing there"):
            of(named, is_here=is_here)
    with pytest.raises(ConfigError, match="a folder"):
        of("code", is_here=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[loop]\nscript = "train.py"\n[run]\ntask = "mine.py:task"\n', "both"),
        ("[loop]\n", "nothing"),
        ('[loop]\nscript = "train.py"\nargs = ["x"]\n', "args"),
        ('[loop]\nscript = "train.py"\narguments = [1]\n', "1"),
        ('[loop]\nscript = "train.py"\nranks = 0\n', "0"),
        ('loop = "train.py"\n', "train.py"),
    ],
)
def test_a_wrong_table_is_refused(place: Path, text: str, found: str) -> None:
    (place / "run.toml").write_text(text)
    _, faults = config.read(place / "run.toml", None, {}, ())
    assert any(found in str(fault) for fault in faults)


def test_an_option_counts_before_the_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "run.toml").write_text('[loop]\nscript = "train.py"\n')
    monkeypatch.chdir(place)
    for options, script in ((Options(), "train.py"), (Options(loop="code/other.py"), "code/other.py")):
        sections, faults = config.read(place / "run.toml", None, options.keys(), ())
        assert not faults
        found = script_of(sections.task_reference or "")
        assert found is not None
        assert os.path.relpath(found.script, place) == script
