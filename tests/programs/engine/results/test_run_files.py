"""What stands in a run folder where a file should: one message and status 2 for a command of that run, one line among
many runs; and nothing is changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from isthmus.programs.engine.results.run_files import (
    OVER,
    SUMMARY,
    EndNote,
    RunFilesError,
    check_files,
    over_of,
    summary_of,
)
from isthmus.programs.wings.dashboard.serving import LiveParts, Shown
from tests.odd_files import ODD, lay
from tests.programs.engine.results import whole_files
from tests.programs.engine.results.made_up_run import build

DIGITS = f'{{"outcome": "done", "learners": {"9" * 400}}}'
OTHER_FORMS = {
    "empty": "",
    "list": "[]",
    "object": "{}",
    "digits": DIGITS,
    "text": "not JSON",
    "no learners": json.dumps({name: value for name, value in whole_files.summary().items() if name != "per_learner"}),
    "many digits": json.dumps(whole_files.summary())[:-1] + f', "tokens_total": {"9" * 400}}}',
    "scripts": json.dumps(whole_files.summary(scripts_unfinished_why=["learner/1"])),
    "infinite": json.dumps(whole_files.summary())[:-1] + ', "wall_seconds": 1e999}',
    "a learner's": json.dumps(whole_files.summary(per_learner=[{"learner": "0", "stall_seconds": 0.0}])),
}
COMMANDS = {
    "status": ["status", "RUN"],
    "status as JSON": ["status", "--json", "RUN"],
    "report": ["report", "RUN"],
    "why": ["why", "RUN"],
    "replay": ["replay", "RUN"],
    "borders": ["borders", "RUN"],
    "export": ["export", "RUN", "--format", "safetensors", "--to", "out"],
    "sample": ["sample", "RUN", "--prompt", "a"],
    "evaluate": ["evaluate", "RUN", "--data", "RUN/config.toml"],
    "resume": ["train", "--resume", "RUN"],
    "resume or start": ["train", "--resume-or-start", "--run-dir", "RUN"],
}
READ = ("config.toml", "graph.json", SUMMARY, "metrics.jsonl", "merges.jsonl", "trace.json", "daemon.json", "spec.json")


def write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)


def odd(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "dangling link":
        path.symlink_to("nowhere")
    else:
        lay(path, kind)


def contents(folder: Path) -> dict[str, bytes]:
    """What the regular files below a folder hold, by name, and that others are there."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = build(tmp_path_factory.mktemp("whole") / "run", steps=60)
    (run / "spec.json").write_text(json.dumps(whole_files.spec()))
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Iterator[Path]:
    """A run that is over, to be spoilt, in a folder of runs beside another one."""
    for name in ("diloco-20260101-000000", "diloco-20260101-000001"):
        shutil.copytree(whole, tmp_path / "runs" / name)
    return tmp_path / "runs" / "diloco-20260101-000000"


Typed = Callable[..., Result]


def refused(typed: Typed, run: Path, words: list[str]) -> str:
    before = contents(run)
    done = typed(run.parent.parent, *(word.replace("RUN", str(run)) for word in words))
    assert (done.exit_code, done.stdout) == (2, ""), (words, done.stdout, done.stderr)
    assert done.stderr.count("isthmus: ") == 1
    assert contents(run) == before
    return done.stderr


def test_a_whole_run_is_refused_by_none(run: Path, typed: Typed) -> None:
    check_files(run, "Reading it")
    assert summary_of(run) == json.loads((run / SUMMARY).read_text())
    assert typed(run.parent.parent, "status", str(run)).exit_code == 0
    assert typed(run.parent.parent, "why", str(run)).exit_code == 0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("form", OTHER_FORMS)
def test_a_command_of_a_run_refuses_another_summary(run: Path, typed: Typed, command: str, form: str) -> None:
    write(run / SUMMARY, OTHER_FORMS[form])
    assert SUMMARY in refused(typed, run, COMMANDS[command])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", READ)
def test_a_command_of_a_run_waits_for_no_pipe(run: Path, typed: Typed, command: str, name: str) -> None:
    odd(run / name, "pipe")
    refused(typed, run, COMMANDS[command])


@pytest.mark.parametrize("name", [*READ, "tape/home-1.1.tape", "borders/home-1.json", "snapshots/manifest.json"])
@pytest.mark.parametrize("kind", [*ODD, "dangling link"])
def test_whatever_is_no_regular_file_is_named(run: Path, name: str, kind: str) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    odd(run / name, kind)
    with pytest.raises(RunFilesError) as caught:
        check_files(run, "Reading it")
    (fault,) = caught.value.faults
    assert name in fault.expected


def test_a_link_to_a_regular_file_is_followed(run: Path, tmp_path: Path) -> None:
    for name in READ[:3]:
        shutil.move(run / name, tmp_path / name)
        (run / name).symlink_to(tmp_path / name)
    check_files(run, "Reading it")
    assert summary_of(run) is not None


@pytest.mark.parametrize("name", ["config.toml", "graph.json", "spec.json", OVER])
@pytest.mark.parametrize("text", ["", "[]", "{}", DIGITS.replace("outcome", "end"), "not JSON"])
def test_a_file_that_is_written_whole_has_its_form(run: Path, name: str, text: str) -> None:
    write(run / name, text)
    with pytest.raises(RunFilesError) as caught:
        check_files(run, "Reading it")
    assert [name in fault.expected for fault in caught.value.faults] == [True]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"outcome": 1}'])
def test_an_end_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    assert over_of(tmp_path) is None
    write(tmp_path / OVER, '{"outcome": "failed", "error": "why"}')
    assert over_of(tmp_path) == EndNote("failed", "why")
    write(tmp_path / OVER, text)
    with pytest.raises(RunFilesError):
        over_of(tmp_path)


def spoilt(run: Path) -> Iterator[None]:
    """The run, spoilt in each way."""
    for text in OTHER_FORMS.values():
        write(run / SUMMARY, text)
        yield
    for kind in [*ODD, "dangling link"]:
        if (run / SUMMARY).is_dir():
            (run / SUMMARY).rmdir()
        odd(run / SUMMARY, kind)
        yield


def test_of_many_runs_the_others_are_shown_and_one_line(run: Path, typed: Typed) -> None:
    for _ in spoilt(run):
        done = typed(run.parent.parent, "status", "--all", "--json")
        assert done.exit_code == 0
        shown = [Path(each["run"]) for each in json.loads(done.stdout)]
        # Daemons of other tests have runs of their own.
        assert [each.name for each in shown if each.parent == run.parent] == ["diloco-20260101-000001"]
        assert [run.name in line for line in done.stderr.splitlines() if str(run.parent) in line] == [True]


def test_the_page_shows_the_others_and_one_row(run: Path) -> None:
    def rows(of: str) -> list[dict[str, Any]]:
        parts = LiveParts(Shown(run.parent, lambda: of), run.parent / of)._look(0.0)
        found: list[dict[str, Any]] = json.loads(parts["runs"])["rows"]
        return found

    for _ in spoilt(run):
        for of in ("diloco-20260101-000000", "diloco-20260101-000001"):
            outcomes = {row["name"]: row["outcome"] for row in rows(of)}
            assert outcomes["diloco-20260101-000001"] == "done"
            assert outcomes[run.name] not in ("done", "not finished")


def test_a_run_that_is_not_over_has_no_summary(tmp_path: Path) -> None:
    assert summary_of(tmp_path) is None
    os.mkfifo(tmp_path / SUMMARY)
    with pytest.raises(RunFilesError):
        summary_of(tmp_path)
