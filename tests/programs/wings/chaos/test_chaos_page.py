"""What `isthmus chaos` shows of programs that were tried; a program that fails is told, and the others go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.programs.engine.results.reading import load
from isthmus.programs.wings.chaos import striking
from isthmus.programs.wings.chaos.chaos_plan import Planned
from isthmus.programs.wings.chaos.chaos_strikes import Strike
from isthmus.programs.wings.chaos.chaos_trial import Recovery, TrainingOrder, TrialFigures, Tried
from isthmus.runtime.errors import RunError
from tests.programs.engine.results.made_up_run import build

STRIKE = Strike(Planned(kind="kill", host="learner/1", at=0.5), 0.6, 0.6, 7, "process 7 is gone")


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, in which decoupled-diloco fails, and any other program leaves two made-up runs."""

    def try_program(order: TrainingOrder, *_: object) -> Tried:
        if order.program == "decoupled-diloco":
            raise RunError("it left no summary")
        folders = [tmp_path / "out" / order.program / name for name in ("undisturbed", "plan")]
        for folder in folders:
            build(folder, learners=2, fragments=2, steps=60)
        calm, struck = map(load, folders)
        recovery = Recovery(STRIKE, 1.5)
        return Tried(order, TrialFigures(calm, (), (), 0, 0.0), TrialFigures(struck, [STRIKE], [recovery], 3, 0.0))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        striking, "in_child", lambda work: {name: ["learner/0", "learner/1"] for name in striking.PROGRAMS}
    )
    monkeypatch.setattr(striking, "check_permitted", lambda: None)
    monkeypatch.setattr(striking, "try_program", try_program)
    return tmp_path / "out"


def test_a_program_that_fails_is_told_and_the_others_go_on(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not striking.chaos([], broken, as_json=True)
    told = capsys.readouterr()
    assert "decoupled-diloco failed: it left no summary" in told.err
    data = json.loads(told.out)
    assert data == json.loads((broken / "chaos.json").read_text())
    assert [run["program"] for run in data["runs"]] == ["data-parallel", "elastic-data-parallel"]
    page = (broken / "chaos.html").read_text()
    assert "decoupled-diloco" not in page
    assert all(f'href="{name}/plan/report.html"' in page for name in striking.PROGRAMS[1:])
    assert page.count("process 7 is gone</td>") == 2
    with pytest.raises(RunError, match="no summary"):
        striking.chaos(["decoupled-diloco"], broken.parent / "again", as_json=True)


def test_tables_and_sentences_are_those_of_the_page(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert striking.chaos(["data-parallel"], broken, as_json=False)
    told, page = capsys.readouterr().out, (broken / "chaos.html").read_text()
    for text in ("calm goodput", "works again", "process 7 is gone", "1.50 s", "overlapped"):
        assert text in told
        assert text in page
    assert told.endswith("page  out/chaos.html\n")
    assert "report.html" not in told
