"""`isthmus status`: who is there, how it goes and what happened, for people and as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rich.console

from isthmus.programs.engine.request.spec import CLUSTER
from isthmus.programs.engine.results.site_words import NOT_TOLD
from isthmus.programs.study.terminal import status as status_view
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.supervision.incidents import Adopted, Restarted, incident_of
from isthmus.runtime.system.files import write_json
from isthmus.runtime.wire.daemon_notes import HERE, DaemonNote
from tests.programs.engine.results import made_up_deaths, whole_files
from tests.programs.engine.results.event_lines import KILLED
from tests.programs.engine.results.made_up_run import build

REPORT = {"incarnation": 1, "phase": "stepping", "step": 1_234, "tokens": 631_808, "loss": 2.25, "staleness": 17}
REPORT |= {"bytes_sent": 5_000_000, "bytes_received": 7_000_000, "step_ms": 12.5, "sick": False}
TRAINING = {
    "phase": "training",
    "zero": 6_500_000_000,
    "tokens": 1_263_616,
    "tokens_budget": 4_000_000,
    "outer_steps": 120,
    "contributors_mean": 1.9,
    "merged_share": 0.9312,
    "goodput": 0.9712,
    "eval_loss": 2.5,
    "eval_loss_initial": 5.545,
    "epochs": {0: 2},
    "learners": {0: REPORT, 1: {**REPORT, "loss": float("nan")}},
}


def host(name: str, phase: str, life: int, state: str = "alive", **more: Any) -> dict[str, Any]:
    known = {"name": name, "role": name.partition("/")[0], "pid": 4711, "phase": phase, "incarnation": life}
    return {**known, "state": state, "reason": None, **more}


HOSTS = [
    host("learner/0", "stepping", 1, cpu_seconds=12.0, memory_bytes=363_000_000),
    host("learner/1", "gone", 0, "gone", pid=None, reason=msgspec.to_builtins(KILLED)),
    host("syncer/0", "serving", 2, bytes_sent=76_700_000, bytes_received=58_800_000),
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose daemon answers; learner 1 has just been killed."""
    folder = tmp_path.resolve() / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(whole_files.CONFIG)
    (folder / "summary.json").write_text(json.dumps(whole_files.summary()))
    step = {"name": "step", "role": "learner", "firing": "AllOf(own)", "mode": "free-running", "blocked_by": []}
    (folder / "graph.json").write_text(json.dumps(whole_files.GRAPH | {"nodes": [step]}))
    made_up_deaths.apart(folder, (12.5, "learner/1", 1, KILLED))
    answer = {"run": str(folder), "outcome": "running", "error": None, "daemon": "local", "pid": 99}
    monkeypatch.setattr(status_view, "status_of", lambda _: {**answer, "hosts": HOSTS, "training": TRAINING})
    return folder


def shown(capsys: pytest.CaptureFixture[str], run: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `isthmus status` prints on so wide a terminal."""
    monkeypatch.setattr(status_view, "Screen", lambda: rich.console.Console(highlight=False, width=width))
    status_view.show(run, every=False, watch=False, as_json=False)
    return capsys.readouterr().out


def test_pairs_that_are_relayed_are_named(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "relayed" not in shown(capsys, run, 100, monkeypatch)
    peers = ["evaluator/0", "syncer/0"]
    hosts = [host(f"learner/{slot}", "stepping", 1, relayed=peers if slot else []) for slot in range(3)]
    answer = status_view.status_of(run)
    monkeypatch.setattr(status_view, "status_of", lambda _: {**answer, "hosts": hosts})
    assert re.search(r"relayed +learner/1, learner/2 to evaluator/0, syncer/0\n", shown(capsys, run, 100, monkeypatch))


def test_json_keeps_its_shape_and_has_the_daemon_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status_view.show(run, every=False, watch=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert {"run", "outcome", "hosts"} <= told.keys()
    for row in told["hosts"]:
        assert {"name", "role", "pid", "phase", "incarnation"} <= row.keys()
    assert [(row["name"], row["role"]) for row in told["hosts"]][:2] == [("daemon", "daemon"), ("learner/0", "learner")]
    assert (told["hosts"][0]["pid"], told["hosts"][0]["incarnation"]) == (99, 1)
    assert told["training"]["learners"]["1"]["loss"] is None
    assert told["training"]["goodput"] == 0.9712
    reasons = {row["name"]: row["reason"] for row in told["hosts"]}
    assert (reasons["daemon"], reasons["learner/0"]) == (None, None)
    assert incident_of(reasons["learner/1"]) == KILLED


def test_json_of_a_run_that_is_watched_is_an_object_on_a_line_at_each_look(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = iter(["running", "running", "done"])
    answer = {"run": str(run), "hosts": HOSTS}
    monkeypatch.setattr(status_view, "status_of", lambda _: {**answer, "outcome": next(outcomes)})
    monkeypatch.setattr(status_view, "WATCH_SECONDS", 0.0)
    status_view.show(run, every=False, watch=True, as_json=True)
    told = [json.loads(line)["outcome"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["running", "running", "done"]


def test_a_daemon_that_took_over_is_its_second_life(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_up_deaths.apart(run, (3.0, "learner/0", 1, Adopted()), (3.0, "syncer/0", 1, Adopted()))
    status_view.show(run, every=False, watch=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["hosts"][0]["incarnation"] == 2


@pytest.mark.parametrize("width", [70, 80, 100, 140])
def test_the_table_tells_the_same(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    out = shown(capsys, run, width, monkeypatch)
    rows = {words[0]: words[1:] for words in map(str.split, out.splitlines()) if words}
    assert rows["daemon"] == ["serving", "1", "99"]
    process = [*(["12.0", "s"] if width >= 140 else []), *(["363", "MB"] if width >= 100 else [])]
    took = ["12.5", "ms"] if width >= 100 else []
    received = width >= 80
    reported = ["1,234", "632", "k", "2.250", *took, "17", "5.00", "MB", *(["7.00", "MB"] if received else [])]
    assert rows["learner/0"] == ["stepping", "1", "4711", *process, *reported]
    assert rows["learner/1"][:3] == ["gone", "-", "-"]
    assert rows["syncer/0"] == ["serving", "2", "4711", "76.7", "MB", *(["58.8", "MB"] if received else [])]
    assert rows["run"] == ["running"]
    assert rows["progress"] == ["31", "%,", "1.26", "M", "of", "4.00", "M", "tokens"]
    assert rows["merged"] == ["93.1", "%"]
    assert rows["goodput"] == ["97.1", "%"]
    assert rows["contributors"] == ["1.9", "of", "2"]
    assert rows["epoch"] == ["2"]
    told = re.sub(r"\s*\n\s+", " ", out)
    assert "12.5 s  learner 1 was killed by signal SIGKILL; the others go on without it" in told
    assert max(map(len, out.splitlines())) <= width
    assert "\u2026" not in out


def test_what_a_run_that_ends_awaits_is_a_row(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = {"awaits": "evaluation", "seconds": 2.0, "usual_seconds": 42.0, "is_stopped": False}
    training = {**TRAINING, "phase": "final", "ending": ending}
    answer = {"run": str(run), "outcome": "running", "error": None, "hosts": HOSTS, "training": training}
    monkeypatch.setattr(status_view, "status_of", lambda _: answer)
    (row,) = [line for line in shown(capsys, run, 120, monkeypatch).splitlines() if line.startswith("waiting")]
    assert "40.0 s" in row


def test_each_site_has_a_row(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"site": "alpha", "tokens": 640, "told": True, "global_first": 5.5, "global_last": 2.0, "own_last": 1.75}
    training = {**TRAINING, "sites": [told, {"site": "beta", "tokens": 64, "told": False}]}
    answer = {"run": str(run), "outcome": "running", "error": None, "hosts": HOSTS, "training": training}
    monkeypatch.setattr(status_view, "status_of", lambda _: answer)
    rows = [line for line in shown(capsys, run, 120, monkeypatch).splitlines() if line.startswith("site ")]
    assert [row.split()[1] for row in rows] == ["alpha", "beta"]
    assert "1.750 (-0.250)" in rows[0]
    assert NOT_TOLD in rows[1]


def test_before_training_it_says_what_goes_on(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [host("learner/0", "compiling", 1), host("learner/1", "recovering", 1)]
    answer = {"run": str(run), "outcome": "running", "pid": 99, "hosts": hosts, "training": {}}
    monkeypatch.setattr(status_view, "status_of", lambda _: answer)
    assert "starting: learners compile, 1 of 2 are ready" in shown(capsys, run, 100, monkeypatch)


def test_a_run_that_is_over_is_told_by_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(tmp_path.resolve() / "run", steps=600, away=2)
    gone, back = made_up_deaths.kill_learner(folder, 2)
    made_up_deaths.apart(folder, (gone, "learner/2", 1, KILLED), (gone, "learner/2", 2, Restarted()))
    out = shown(capsys, folder, 120, monkeypatch)
    assert "restarts" in out
    assert "1.23 k tokens died with learners" in out
    assert f"{gone:.1f} s  learner 2 was killed by signal SIGKILL" in out
    assert f"{back:.1f} s  learner 2 steps again" in out


def test_of_all_runs_those_that_nobody_answers_for_are_left_out(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(folder: Path) -> dict[str, Any]:
        if folder == run:
            return {"run": str(run), "outcome": "running", "pid": 1, "hosts": [], "training": {}}
        raise ConfigError("Asking", "a daemon", "none", "Start one.")

    monkeypatch.setattr(status_view, "status_of", answer)
    monkeypatch.setattr(status_view, "all_folders", lambda: [run.parent / "silent", run])
    status_view.show(None, every=True, watch=False, as_json=True)
    assert [told["run"] for told in json.loads(capsys.readouterr().out)] == [str(run)]
    monkeypatch.setattr(status_view, "folder_of", lambda _: run.parent / "silent")
    with pytest.raises(ConfigError):
        status_view.show(None, every=False, watch=False, as_json=True)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ('{"transport": "inproc"}', "none: the run was in one process"),
        ('{"transport": "zmq"}', "none yet, or one that did not start"),
        ("{", "none yet, or one that did not start"),
    ],
)
def test_whether_a_run_had_a_daemon_is_in_its_spec(tmp_path: Path, told: str, found: str) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "spec.json").write_text(told)
    with pytest.raises(ConfigError, match=found):
        status_view.status_of(tmp_path)


@pytest.mark.parametrize(
    ("more", "found", "remedy"),
    [({}, "no answer from .*", "ask again"), ({"started": 1}, "which is gone", "isthmus train --resume")],
)
def test_without_an_answer_the_remedy_depends_on_whether_the_daemon_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], found: str, remedy: str
) -> None:
    monkeypatch.setattr(status_view, "ask", lambda *arguments: None)
    write_json(tmp_path / HERE, asdict(replace(DaemonNote.mine("ipc://nowhere", "local"), **more)))
    with pytest.raises(ConfigError, match=f"{found}\\.\n.*{remedy}"):
        status_view.status_of(tmp_path)


def test_a_run_of_a_cluster_is_not_to_be_resumed_as_one_of_a_machine(tmp_path: Path) -> None:
    write_json(tmp_path / HERE, asdict(replace(DaemonNote.mine("ipc://nowhere", "alpha"), started=1)))
    (tmp_path / CLUSTER).write_text("{}")
    with pytest.raises(ConfigError) as refused:
        status_view.status_of(tmp_path)
    assert f"train --resume {tmp_path} --cluster FILE" in str(refused.value)
    assert "or of another machine" in str(refused.value)  # Its folder may be shared, as that of a launch is.


def test_of_a_folder_that_was_made_ready_and_has_no_daemon_the_command_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "spec.json").write_text('{"transport": "zmq"}')
    with pytest.raises(ConfigError) as refused:
        status_view.status_of(tmp_path)
    assert str(refused.value).endswith(f"train --resume {tmp_path}")
    (tmp_path / CLUSTER).write_text("{}")
    with pytest.raises(ConfigError) as refused:
        status_view.status_of(tmp_path)
    assert str(refused.value).endswith(f"train --resume {tmp_path} --cluster FILE")


def test_the_log_of_a_host_elsewhere_is_asked_for_by_the_cluster_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [{"name": "learner/0", "machine": "alpha"}, {"name": "learner/1", "machine": "beta"}]
    monkeypatch.setattr(status_view, "_answer", lambda folder: {"hosts": hosts})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "learner-0.log").write_text("said")
    assert status_view.log_of(tmp_path, "learner/0") == "said"
    with pytest.raises(ConfigError, match=r"one of 'beta'.\n.*--cluster FILE"):
        status_view.log_of(tmp_path, "learner/1")
    with pytest.raises(ConfigError, match=r"found 'learner/2'.\n.*Did you mean 'learner/"):
        status_view.log_of(tmp_path, "learner/2")
