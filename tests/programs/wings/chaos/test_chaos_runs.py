"""`isthmus chaos` on real processes: faults happen, are proved, and the run goes on; what is wrong starts nothing."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from isthmus.programs.engine.results.reading import load
from isthmus.runtime.supervision.incidents import Restarted
from tests.patience import PATIENCE
from tests.programs.engine.results.event_lines import incidents_in
from tests.programs.engine.run.process_run import ISTHMUS, TASK, assert_is_whole

PLAN = """
[run]
task = "paced.py:task"
learners = 2
tokens = 60_000
[[fault]]
kind = "kill"
host = "learner/1"
at = 0.5
[[fault]]
kind = "kill"
host = "syncer/0"
at = 0.6
[[fault]]
kind = "pause"
host = "learner/0"
at = 0.7
seconds = 0.5
[[fault]]
kind = "slow"
host = "evaluator/0"
at = 0.8
seconds = 0.5
[[fault]]
kind = "mute"
host = "learner/0"
at = 2
seconds = 0.5
"""


SLOW = TASK.replace("time.sleep(0.004)", "time.sleep(0.012)")
"""Faults come at seconds of the run: the fewer steps it takes until then, the less it computes."""


def written(folder: Path, plan: str) -> None:
    """Write a task and a plan into a folder."""
    (folder / "paced.py").write_text(SLOW)
    (folder / "plan.toml").write_text(plan)


def chaos(folder: Path, *words: str, plan: str = PLAN) -> subprocess.CompletedProcess[str]:
    written(folder, plan)
    command = [str(ISTHMUS), "chaos", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)


@dataclass(frozen=True, slots=True)
class Struck:
    """A program trained twice, once undisturbed and once under a plan."""

    told: dict[str, Any]
    folder: Path

    @property
    def run(self) -> dict[str, Any]:
        """What is told of the program."""
        [run] = self.told["runs"]
        assert isinstance(run, dict)
        return run

    @property
    def calm(self) -> Path:
        """The folder of the undisturbed run."""
        return self.folder / "decoupled-diloco" / "undisturbed"

    @property
    def disturbed(self) -> Path:
        """The folder of the run under the plan."""
        return self.folder / "decoupled-diloco" / "plan"


@pytest.fixture(scope="session")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Struck:
    folder = tmp_path_factory.mktemp("chaos")
    done = chaos(folder, "plan.toml", "decoupled-diloco", "--run-dir", "out", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    return Struck(json.loads(done.stdout), folder / "out")


@pytest.mark.long
@pytest.mark.process
class TestStruck:
    """One plan, two real runs."""

    def test_every_fault_happens_and_the_run_is_done(self, struck: Struck) -> None:
        run = struck.run
        assert struck.told == json.loads((struck.folder / "chaos.json").read_text())
        assert (run["program"], run["outcome"], run["waits_on_other_hosts"]) == ("decoupled-diloco", "done", 0)
        assert all(0.0 < run[name] <= 1.0 for name in ("uptime", "goodput", "goodput_undisturbed", "merged_share"))
        assert [(each["role"], each["fault"]) for each in run["recoveries"]] == [
            ("learner", "kill"),
            ("syncer", "kill"),
            ("learner", "pause"),
            ("evaluator", "slow"),
            ("learner", "mute"),
        ]
        assert [each["proof"] != "" and each["why"] == "" for each in run["faults"]] == [True] * 5
        assert all(each["begun"] >= each["at"] for each in run["faults"])
        assert (run["snapshots"], struck.told["verdict"]) == (None, {})

    def test_the_page_has_the_proofs_and_a_drawing_of_the_run(self, struck: Struck) -> None:
        page = (struck.folder / "chaos.html").read_text()
        assert all(each["proof"] in page for each in struck.run["faults"])
        assert page.count("<svg") == 5  # What was kept; and in one, steps, faults and loss.
        drawing = ET.parse(struck.folder / "decoupled-diloco" / "chaos.svg")
        assert drawing.getroot().tag.endswith("svg")
        assert not re.search(r"(?:src|href)=[\"'](?:https?:)?//", page)

    def test_what_the_runs_themselves_wrote_down_says_the_same(self, struck: Struck) -> None:
        ends = {
            (line["host"], line["end"]["signal"])
            for line in map(json.loads, (struck.disturbed / "events.jsonl").read_text().splitlines())
            if line["kind"] == "ended" and line["end"].get("signal")
        }
        assert ends == {("learner/1", "SIGKILL"), ("syncer/0", "SIGKILL")}
        assert "SIGKILL" not in (struck.calm / "events.jsonl").read_text()
        # The life that was killed has left its steps, on its tape.
        timeline = load(struck.disturbed).timeline
        assert timeline is not None
        assert timeline.between("learner/1", "inner-step", 0.0, 0.5)
        assert not (struck.disturbed / "spans" / "learner-1-1.json").exists()
        for folder, name in ((struck.calm, "goodput_undisturbed"), (struck.disturbed, "goodput")):
            assert json.loads((folder / "summary.json").read_text())["goodput"] == struck.run[name]

    def test_a_run_comes_to_its_end_and_leaves_everything_behind(self, struck: Struck) -> None:
        summary = json.loads((struck.calm / "summary.json").read_text())
        assert summary["outcome"] == "done"
        assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]
        assert summary["tokens_pending"] == 0
        assert Restarted() not in incidents_in(struck.calm, "")
        assert_is_whole(struck.calm)


@pytest.mark.soak
@pytest.mark.process
def test_a_machine_dies_with_all_that_is_on_it_and_comes_back_and_so_does_the_home(tmp_path: Path) -> None:
    plan = """
machines = 2
[run]
task = "paced.py:task"
learners = 4
tokens = 800_000
[[fault]]
kind = "kill"
host = "machine/1"
at = 1
[[fault]]
kind = "kill"
host = "learner/3"
at = 2
[[fault]]
kind = "kill"
host = "daemon"
at = 3
[[fault]]
kind = "kill"
host = "fork-server"
at = 4
[[fault]]
kind = "kill"
host = "machine/0"
at = 5
"""
    done = chaos(tmp_path, "plan.toml", "decoupled-diloco", "--run-dir", "out", "--json", plan=plan)
    assert done.returncode == 0, (done.stdout, done.stderr)
    [run] = json.loads(done.stdout)["runs"]
    assert [(each["role"], each["fault"]) for each in run["recoveries"]] == [
        ("machine", "kill"),
        ("learner", "kill"),
        ("daemon", "kill"),
        ("fork-server", "kill"),
        ("machine", "kill"),
    ]
    assert all(each["seconds"] > 0.0 for each in run["recoveries"])
    [machine, *_, home] = run["faults"]
    assert machine["proof"].endswith("processes are gone: its daemon, learner/1, learner/3")
    at_home = ["evaluator/0", "learner/0", "learner/2", "recorder/0", "syncer/0"]
    assert sorted(home["proof"].partition("its daemon, ")[2].split(", ")) == at_home
    # While all of the home was away, the other machine went on stepping.
    record = load(tmp_path / run["folder"])
    [away] = [each for each in record.absences if each.host == "syncer/0"]
    assert record.timeline is not None
    assert away.ended is not None
    others = ("learner/1", "learner/3")
    assert any(record.timeline.between(host, "inner-step", away.begun, away.ended) for host in others)
    # Tapes of all lives are at home, so that waits of all of them are counted.
    tapes = {path.name.split(".")[0] for path in (tmp_path / run["folder"] / "tape").glob("learner-*")}
    assert tapes == {f"learner-{life}" for life in ("0-1", "0-2", "1-1", "1-2", "2-1", "2-2", "3-1", "3-2", "3-3")}
    # Nothing but what was struck has ended, and once; nothing is left behind.
    lines = map(json.loads, (tmp_path / run["folder"] / "events.jsonl").read_text().splitlines())
    ends = [(line["host"], line["incarnation"]) for line in lines if line["kind"] == "ended"]
    assert sorted(ends) == sorted(
        [("learner/1", 1), ("learner/3", 1), ("learner/3", 2), *((host, 1) for host in at_home)]
    )
    assert not [path for path in Path("/proc").iterdir() if path.name.isdigit() and works_in(path, tmp_path)]


def works_in(process: Path, folder: Path) -> bool:
    """Whether a process works in a folder, or below it."""
    with suppress(OSError):
        return (process / "cwd").readlink().is_relative_to(folder)
    return False


@pytest.mark.parametrize(
    ("words", "plan", "found"),
    [
        (["nowhere.toml"], "", "expected a file, found nothing there"),
        (["plan.toml"], PLAN.replace("learner/1", "learner/2"), "'learner/2'"),
        (["plan.toml", "diloco", "diloco"], PLAN, "diloco twice"),
        (["plan.toml", "plan.toml"], PLAN, "expected one plan"),
        (["plan.toml"], "[program.dilloco]", "Did you mean 'diloco'"),
        (["plan.toml"], "[run]\ntokens = 0", "run.tokens: expected at least 1"),
        (["plan.toml"], "machines = 9", "as many machines as learners"),
        (["plan.toml"], '[[fault]]\nkind = "tc"\nhost = "learner/0"\nat = 1', "There is: clog, kill"),
    ],
)
@pytest.mark.slow
def test_what_is_wrong_starts_nothing(
    tmp_path: Path, typed: Callable[..., Result], words: list[str], plan: str, found: str
) -> None:
    written(tmp_path, plan)
    done = typed(tmp_path, "chaos", *words, "--run-dir", "out")
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert found in done.stderr
    assert done.stderr.count("isthmus: ") == 1
    assert not (tmp_path / "out").exists()
