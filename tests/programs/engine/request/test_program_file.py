"""The file of a program is compared with the one that was trained before it is imported."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from isthmus.programs.engine.request import new_spec, spec
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import prepare
from isthmus.runtime.errors import ConfigError

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"
CHANGED = """
import pathlib
pathlib.Path(__file__).with_name("was-imported").touch()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "gossip_of_this_test.py"
    path.write_text((EXAMPLES / "gossip.py").read_text())
    return path


def spec_of(program: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> spec.Spec:
    monkeypatch.chdir(EXAMPLES)
    run = {"tokens": 1000, "learners": 2}
    request = prepare(Program(f"{program}:build"), "mine.py:task", run=run, run_dir=here / "run")
    fields = new_spec.of(request, zero_ns=0, cpu_seconds=0.0)
    return spec.read(json.loads(json.dumps(fields)))


def test_one_that_has_changed_is_refused_before_it_is_imported(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_spec = spec_of(program, tmp_path, monkeypatch)
    run_spec.graph()
    before = program.read_text()
    program.write_text(before + CHANGED)
    with pytest.raises(ConfigError) as caught:
        run_spec.graph()
    assert str(program) in caught.value.faults[0].expected
    assert not (tmp_path / "was-imported").exists()
    with pytest.raises(ConfigError):  # Of a run that has no digest the fingerprint tells, once it was imported.
        dataclasses.replace(run_spec, program_file="").graph()
    assert (tmp_path / "was-imported").exists()
    program.write_text(before)
    run_spec.graph()


def test_a_shipped_program_has_no_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    request = prepare(Program(), "mine.py:task", run={"tokens": 1000}, run_dir=tmp_path / "run")
    assert new_spec.of(request, zero_ns=0, cpu_seconds=0.0)["program_file"] == ""
