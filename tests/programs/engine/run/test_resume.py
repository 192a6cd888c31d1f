"""A run all of whose processes are killed goes on from its last snapshot; what cannot go on is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from copy import copy as shallow
from pathlib import Path

import msgspec
import pytest
from typer.testing import Result

from isthmus.programs.engine.recorder import books
from isthmus.programs.engine.run.resume import check_not_below
from isthmus.programs.engine.snapshots.snapshot_files import BEFORE, FOLDER, MANIFEST
from isthmus.programs.study.terminal import figures
from isthmus.runtime.daemon.ledger import FILE as LEDGER
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.daemon_notes import HERE
from tests.patience import PATIENCE
from tests.programs.engine.results import whole_files
from tests.programs.engine.run.process_run import ISTHMUS, PAUSE, Run, resume

pytestmark = pytest.mark.process


@pytest.fixture(scope="session")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that was killed, all of it at once, after some snapshots; what travels is coded."""
    settings = [
        *("run.snapshot_every_seconds=0.2", "program.interval=8", "program.outer_momentum=0.5"),
        *("program.push=int4", "program.update=int4"),
    ]
    run = Run(tmp_path_factory.mktemp("cut-off"), *(part for each in settings for part in ("--set", each)))
    try:
        run.wait_for(lambda: all((run.folder / FOLDER / name).exists() for name in (MANIFEST, BEFORE)))
        run.wait_for(lambda: all((run.folder / "local" / f"learner-{slot}").exists() for slot in range(2)))
        run.wait_for_merges(20)
        run.kill_all()
        yield run
    finally:
        run.close()


def one_that_goes_on(rivals: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Of two commands that resume one run the one that does; the other is refused."""
    until = time.monotonic() + PATIENCE
    while len(refused := [each for each in rivals if each.poll() is not None]) < 1:
        assert time.monotonic() < until, "both go on"
        PAUSE.wait(0.02)
    _, error = refused[0].communicate()
    assert (refused[0].returncode, "expected a run that" in error) == (2, True), error
    [other] = [each for each in rivals if each is not refused[0]]
    return other


def leave_without_reader(command: subprocess.Popen[str]) -> None:
    """Close what reads a command's output, as `| head` does: the command ends, and the run goes on by itself."""
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    error = command.stderr.read()
    assert command.wait(PATIENCE) == 0, error
    assert "standard output was closed" in error


Refusal = Callable[..., str]


@pytest.fixture
def refusal(dead: Run, typed: Callable[..., Result]) -> Refusal:
    """What a resume that is refused is told."""

    def told(*more: str, folder: str = "run") -> str:
        done = typed(dead.here, "train", "--resume", folder, *more)
        assert (done.exit_code, done.stdout) == (2, ""), done.stderr
        return done.stderr

    return told


def copy(run: Run, name: str) -> Path:
    """The run folder, to be spoilt."""
    shutil.copytree(run.folder, run.here / name)
    return run.here / name


def contents(folder: Path) -> dict[str, bytes]:
    """What the files below a folder hold, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_cannot_go_on_is_refused_and_nothing_is_changed(dead: Run, refusal: Refusal) -> None:
    before = contents(dead.folder)
    assert "expected beside it --tokens" in refusal("--seed", "7")
    told = refusal("--set", "program.fragments=1", "--set", "program.interval=9", "--set", "run.seed=3")
    assert "would change program.fragments: expected 2, with which it was begun, found 1" in told
    assert "would change run.seed" in told
    assert "interval" not in told
    told = refusal("--set", "run.program=diloco")
    assert "would change run.program: expected 'decoupled-diloco', with which it was begun, found 'diloco'" in told
    assert "found no such folder" in refusal(folder="nowhere")
    spec = copy(dead, "inproc") / "spec.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "transport": "inproc"}))
    assert "found one in one process" in refusal(folder="inproc")
    shutil.rmtree(copy(dead, "without") / FOLDER)
    assert "expected a snapshot" in refusal(folder="without")
    config = copy(dead, "changed") / "config.toml"
    config.write_text(config.read_text().replace("shards = 1", "shards = 2"))
    assert "would change program.shards" in refusal(folder="changed")
    spec = copy(dead, "sources") / "spec.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "fingerprint": "0" * 32}))
    assert "The program or isthmus itself was changed since" in refusal(folder="sources")
    config = copy(dead, "earlier") / "config.toml"
    config.write_text(re.sub("(?m)^task = .*$", 'task = "isthmus.programs.digits:task"', config.read_text()))
    assert "docs/examples/digits.py" in refusal(folder="earlier")
    (copy(dead, "torn") / "spec.json").write_text('{"run": 1')
    assert "expected a spec.json as a run writes it" in refusal(folder="torn")
    (copy(dead, "ended") / "summary.json").write_text(json.dumps(whole_files.summary()))
    assert "and a run that is done" in refusal(folder="ended")
    assert "tokens that are trained, found 640" in refusal("--tokens", "640", folder="ended")
    (dead.here / "ended" / "cluster.json").write_text('{"home": "alpha", "sites": []}')
    assert "found one of a cluster" in refusal(folder="ended")
    assert contents(dead.folder) == before


def test_where_no_snapshot_is_whole_and_of_this_model_nothing_is_started_or_written(
    dead: Run, refusal: Refusal
) -> None:
    spoilt = copy(dead, "spoilt")
    for path in (spoilt / FOLDER).glob("fragment-0-*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    before = contents(spoilt)
    told = refusal(folder="spoilt")
    # Two, unless the run was killed between the renaming of the older manifest and the writing of the newer one.
    there = [name for name in (MANIFEST, BEFORE) if (spoilt / FOLDER / name).exists()]
    assert told.count("is not what was written") == len(there) > 0
    assert "expected a snapshot in spoilt/snapshots that is whole, of this model" in told
    assert contents(spoilt) == before


def test_a_snapshot_of_another_format_is_not_damaged_and_odd_files_are_refused(dead: Run, refusal: Refusal) -> None:
    for number, spoil in enumerate((later_manifest, later_books, pipe_for_a_note, pipe_for_a_ledger)):
        folder = copy(dead, f"other-{number}")
        name = spoil(folder)
        before = contents(folder)
        assert name in refusal("--tokens", "10000000", folder=folder.name)
        assert contents(folder) == before


def later_manifest(folder: Path) -> str:
    """The newest snapshot is of a later version of isthmus."""
    # Its name, unless the run was killed between the renaming of the older manifest and the writing of the newer one.
    path = next(path for name in (MANIFEST, BEFORE) if (path := folder / FOLDER / name).exists())
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "format": told["format"] + 1, "later": []}))
    return path.name


def later_books(folder: Path) -> str:
    """So is the memory of the recorder."""
    path = folder / books.FILE
    path.write_bytes(msgspec.msgpack.encode({**msgspec.msgpack.decode(path.read_bytes()), "zero": "later"}))
    return path.name


def pipe_for_a_note(folder: Path) -> str:
    (folder / HERE).unlink(missing_ok=True)
    os.mkfifo(folder / HERE)
    return HERE


def pipe_for_a_ledger(folder: Path) -> str:
    (folder / LEDGER).unlink(missing_ok=True)
    os.mkfifo(folder / LEDGER)
    return LEDGER


@pytest.mark.parametrize(
    ("total", "trained", "is_refused"), [(50, 60, True), (60, 60, False), (70, 60, False), (100, 120, False)]
)
def test_no_new_budget_is_below_what_was_trained(total: int, trained: int, is_refused: bool) -> None:
    """Whatever of that is undone now."""
    with pytest.raises(ConfigError) if is_refused else nullcontext():
        check_not_below(100, total, trained, "Resuming it")


@pytest.mark.soak
@pytest.mark.parametrize("learners", [1, 3])
def test_it_may_go_on_with_other_learners_and_another_budget_and_its_accounts_add_up(dead: Run, learners: int) -> None:
    folder = copy(dead, f"other-{learners}")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    trained = sum({line["learner"]: line["tokens"] for line in lines}.values())
    asked = ("--learners", f"{learners}", "--tokens", f"{trained + 20_000}", "--set", "program.overlap=3")
    process = resume(dead, *asked, folder=folder.name)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["outcome"], summary["learners"]) == ("done", learners)
    # What was trained after the snapshot is trained again.
    assert 0 <= summary["tokens_undone"] < trained
    assert summary["tokens_total"] - summary["tokens_undone"] >= trained + 20_000
    assert [account["difference"] for account in summary["fragment_accounts"]] == [0] * summary["fragments"]
    lives = {(life["learner"], life["incarnation"]) for life in summary["books"]["lives"]}
    assert lives == {(0, 1), (1, 1), *((slot, 2 if slot < 2 else 1) for slot in range(learners))}
    config = (folder / "config.toml").read_text()
    assert all(line in config for line in (f"learners = {learners}", "overlap = 3", "outer_momentum = 0.5"))
    found = subprocess.run([str(ISTHMUS), "replay", str(folder), "--json"], capture_output=True, text=True, check=False)
    assert json.loads(found.stdout)["identical"] is True, found.stdout


def test_a_run_that_was_killed_goes_on_with_its_model_and_its_books(
    dead: Run, refusal: Refusal, typed: Callable[..., Result]
) -> None:
    run = shallow(dead)
    run.folder = copy(dead, "again")
    merged, told = run.merges(), json.loads((run.folder / FOLDER / BEFORE).read_text())
    (run.folder / FOLDER / MANIFEST).write_text('{"format": 2')
    assert all(entry["version"][1] > 0 for entry in told["fragments"])
    with (run.folder / "logs" / "learner-0.log").open("ab") as log:  # What a host has that outlived its daemon.
        left = subprocess.Popen(["sleep", "600"], stdout=log, start_new_session=True)
    rivals = [resume(run, folder="again") for _ in range(2)]
    run.command = one_that_goes_on(rivals)
    try:
        assert left.wait(PATIENCE) == -signal.SIGKILL
        run.wait_for(lambda: run.epochs()[-1:] == [2])
        os.kill(run.daemon()["pid"], signal.SIGKILL)
        assert "of process" in refusal(folder="again")  # Whether or not the next daemon is there.
        assert run.command.stdout is not None
        assert run.command.stdout.readline().startswith(f"goes on from snapshot {told['number']}, ")
        leave_without_reader(run.command)
        assert "of process" in refusal(folder="again")  # Its daemon has the lock now.
        assert typed(run.here, "stop", "again").exit_code == 0
        run.wait_until_gone()
        summary = run.summary()
    finally:
        run.close()
    assert run.merges() > merged
    assert summary["tokens_undone"] > 0
    assert [told for told in summary["books"]["differences"] if told["kind"] != "merges"] == []  # Lines are samples.
    assert all(entry["fragment"] in range(summary["fragments"]) for entry in told["fragments"])
    lives = {(life["learner"], life["incarnation"]) for life in summary["books"]["lives"]}
    assert lives == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert [fault[:23] for fault in summary["snapshot_faults"]] == ["snapshots/manifest.json"]
    assert any(word == "snapshot" and "manifest.json" in told for word, told in figures.ending(summary, "again"))
    assert "snapshots/manifest.json" in (run.folder / "report.html").read_text()
    assert summary["books"]["unreported_estimate"] < 2 * 16_000  # A second of two learners, and not the time until now.
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    began = {(line["learner"], line["incarnation"]): line["began"] for line in lines if line.get("began")}
    second = {life: how[:2] for life, how in began.items() if life[1] == 2}  # A late first life may have borrowed.
    assert second == {(slot, 2): ["copy", 1] for slot in range(2)}
    assert all(step > 0 for _, _, step in began.values())
    lines = map(json.loads, (run.folder / "merges.jsonl").read_text().splitlines())
    later = {line["fragment"]: line for line in lines if line["epoch"] == 2}
    for entry in told["fragments"]:
        line = later[entry["fragment"]]
        assert (line["origin"], line["momentum"]) == (entry["version"], entry["version"])


TOKENS = 200_000


def has_cut(folder: Path) -> bool:
    """Whether the newest snapshot has what only learners have."""
    with suppress(FileNotFoundError):
        return bool(json.loads((folder / FOLDER / MANIFEST).read_text())["states"])
    return False


@pytest.mark.soak
@pytest.mark.parametrize("program", ["diloco", "streaming-diloco"])
def test_learners_in_lock_step_go_on_with_the_bits_of_a_run_that_was_never_cut_off(
    tmp_path: Path, program: str
) -> None:
    asked = [
        *("--set", f"run.program={program}"),
        *("--set", "run.snapshot_every_seconds=0.5", "--set", "program.interval=6"),
    ]
    folders = [tmp_path / name for name in ("calm", "struck")]
    for folder in folders:
        folder.mkdir()
    calm, struck = (Run(folder, *asked, tokens=TOKENS) for folder in folders)
    try:
        struck.wait_for(lambda: has_cut(struck.folder))
        struck.kill_all()
        process = resume(struck)
        _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, error
        calm.command.communicate(timeout=PATIENCE)
        began = [json.loads(line).get("began") for line in (struck.folder / "metrics.jsonl").read_text().splitlines()]
        assert [each[0] for each in began if each] == ["snapshot"] * 2
        models = [sorted((run.folder / FOLDER / "final").iterdir()) for run in (calm, struck)]
        assert models[0]
        assert [path.read_bytes() for path in models[0]] == [path.read_bytes() for path in models[1]]
    finally:
        calm.close()
        struck.close()


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_and_may_be_stopped_again_before_it_steps(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    run.stop()
    run.command = resume(run)
    run.wait_for(lambda: run.host("learner/0").get("state") == "alive")
    run.stop()
    run.command = resume(run)
    run.wait_for_merges(20)
    run.stop()
