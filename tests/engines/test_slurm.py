"""`isthmus launch slurm` on a real Slurm of this machine: preemptions, scaling, the end, and what a launch costs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engines.launched_run import FOREVER, TASK, TOKENS_PER_SECOND, LaunchedRun, median, wait_for
from tests.engines.slurm_rig import SUBNET, SlurmRig, why_not
from tests.patience import PATIENCE
from tests.programs.engine.run.agreement import disagreements

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.timeout(1500)]

ISTHMUS = Path(sys.executable).with_name("isthmus")
AFTER_END_SECONDS = 10.0
RATIO_MAX = 1.5
STEPS_RATIO_MIN = 0.95
REPEATS = 3


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    """One Slurm for all tests: at a site that does not warn batch scripts, as Slurm is by itself."""
    assert not why_not(), why_not()
    slurm = SlurmRig(tmp_path_factory.mktemp("slurm"), warns=False)
    yield slurm
    slurm.close()


class Launched:
    """A launch in a folder of its own."""

    def __init__(self, rig: SlurmRig, folder: Path, tokens: int, launch: str = 'partition = "low"\ncpus = 1\n') -> None:
        self.rig, self.here = rig, folder
        folder.mkdir(exist_ok=True)
        self.name = f"t{os.getpid()}-{folder.name}".lower().replace("_", "-")[:40].rstrip("-")
        self.folder = folder / "launches" / self.name
        self.run = LaunchedRun(self.folder / "run")
        (folder / "paced.py").write_text(TASK)
        text = f'[run]\ntask = "paced.py:task"\ntokens = {tokens}\n[program]\ninterval = 6\n[launch]\n{launch}'
        (folder / f"{self.name}.toml").write_text(text)

    def type(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Type `isthmus launch` with words on the cluster."""
        return self.rig.run(str(ISTHMUS), "launch", *words, cwd=self.here, check=check)

    def begin(self, *more: str, islands: int = 2) -> None:
        self.type("slurm", f"{self.name}.toml", "--islands", str(islands), *more)

    def jobs(self) -> dict[str, dict[str, str]]:
        """What is not over, by member."""
        members = json.loads(self.type("status", "--json").stdout)["members"]
        return {member["name"]: member for member in members}

    @contextmanager
    def preempted(self, member: str) -> Iterator[None]:
        """The node of a member is another's; it has been requeued, and begins elsewhere."""
        job = self.jobs()[member]
        words = ("--partition=high", f"--nodelist={job['node']}", "--ntasks=1", "--cpus-per-task=2", "--parsable")
        hog = self.rig.run("sbatch", *words, "--output=/dev/null", "--wrap=sleep 3600", cwd=self.here).stdout.strip()
        try:
            wait_for(lambda: self.jobs()[member]["state"] == "PENDING", self.story)
            # By itself it would wait for two minutes.
            self.rig.run("scontrol", "update", f"job={self.jobs()[member]['id']}", "StartTime=now")
            wait_for(lambda: self.jobs()[member]["state"] == "RUNNING", self.story)
            yield
        finally:
            self.rig.run("scancel", hog)

    def wait_for_nothing(self, seconds: float) -> None:
        """Nothing of it is left in the queue, nor any process, after so long."""
        wait_for(lambda: not self.rig.jobs() and not self.rig.pids(), self.story, seconds)

    def story(self) -> str:
        """The ends of its logs, and the queue."""
        logs = {path.name: path.read_text()[-1500:] for path in sorted(self.folder.glob("*.log"))}
        return json.dumps({"jobs": self.rig.jobs(), **logs}, indent=1).replace("\\n", "\n")


@pytest.fixture
def launched(rig: SlurmRig, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Makes launches, which are down after the test."""
    with ExitStack() as stack:

        def make(tokens: int, **more: Any) -> Launched:
            one = Launched(rig, tmp_path, tokens, **more)
            stack.callback(lambda: one.folder.exists() and one.type("down", check=False))
            return one

        yield make
    wait_for(lambda: not rig.jobs() and not rig.pids(), lambda: str((rig.jobs(), rig.pids())), 2 * AFTER_END_SECONDS)


def test_an_island_and_the_home_are_preempted_and_come_back(launched: Callable[..., Launched]) -> None:
    launch = launched(150 * 2 * TOKENS_PER_SECOND)
    launch.begin()
    run = launch.run
    run.wait_for_merges(0, 1, why=launch.story)
    slots = {each["machine"]: int(each["host"][-1]) for each in run.lines("events") if each["kind"] == "joined"}
    gone, other = slots["island-1"], slots["island-0"]
    begun = run.now()
    wait_for(lambda: run.now() > begun + 15, launch.story)

    before = run.now()
    with launch.preempted("island-1"):
        run.wait_for_merges(gone, other, why=launch.story)
    rates = run.steps_per_second(other, begun, before), run.steps_per_second(other, before, run.now())
    away = run.now()
    with launch.preempted("home"):
        run.wait_for_merges(gone, other, why=launch.story)
    rates = (*rates, run.steps_per_second(other, away, run.now()))
    lives = {(row["learner"], row["incarnation"]) for row in run.lines("metrics") if row["time"] > away}

    summary = wait_for(run.summary, launch.story, 2 * PATIENCE)
    launch.wait_for_nothing(AFTER_END_SECONDS)
    print(f"steps/s before, island preempted, home preempted: {', '.join(f'{each:.1f}' for each in rates)}")
    assert (summary["outcome"], len(summary["per_learner"])) == ("done", 2), summary
    assert disagreements(run.folder) == []
    assert min(rates[1:]) / rates[0] >= STEPS_RATIO_MIN
    assert len(lives) == 2, "a learner died with the home"


def test_it_scales_from_two_islands_to_four_to_one_and_ends(launched: Callable[..., Launched]) -> None:
    launch = launched(100 * 2 * TOKENS_PER_SECOND)
    launch.begin()
    run = launch.run
    run.wait_for_merges(0, 1, why=launch.story)
    launch.type("scale", "4")
    run.wait_for_merges(0, 1, 2, 3, why=launch.story)
    launch.type("scale", "1")
    wait_for(lambda: set(launch.jobs()) == {"home", "island-0"}, launch.story)
    left = next(int(each["host"][-1]) for each in run.lines("events") if each.get("machine") == "island-0")
    run.wait_for_merges(left, why=launch.story)
    refused = launch.type("scale", "17", check=False)
    assert (refused.returncode, "from 1 to 16 islands" in refused.stderr) == (2, True)

    summary = wait_for(run.summary, launch.story, 2 * PATIENCE)
    launch.wait_for_nothing(AFTER_END_SECONDS)
    assert summary["outcome"] == "done"
    assert disagreements(run.folder) == []
    losses = [line["eval_loss"] for line in run.lines("evaluations")]
    assert losses[-1] < losses[len(losses) // 2] < losses[0]
    refused = launch.type("scale", "2", check=False)
    assert (refused.returncode, "found one that is done" in refused.stderr) == (2, True)
    refused = launch.type("slurm", f"{launch.name}.toml", check=False)
    assert (refused.returncode, "which is done" in refused.stderr) == (2, True)


def test_down_frees_all_and_the_same_launch_goes_on(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.begin()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    again = launch.type("slurm", f"{launch.name}.toml", check=False)
    assert (again.returncode, "End it first" in again.stderr) == (2, True)
    launch.type("down")
    launch.wait_for_nothing(AFTER_END_SECONDS)
    assert launch.run.summary()["outcome"] == "interrupted"
    launch.begin()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    launch.type("down")
    launch.wait_for_nothing(AFTER_END_SECONDS)


SLOW_SBATCH = """#!/bin/sh
case $* in
*--parsable*) touch "$(dirname "$0")/begun"; sleep 2 ;;
esac
exec {sbatch} "$@"
"""


def test_a_launcher_that_is_killed_half_way_leaves_nothing_that_down_does_not_find(
    launched: Callable[..., Launched],
) -> None:
    """It is killed while sbatch has not answered yet, which goes on to submit the home."""
    launch = launched(FOREVER)
    slow = launch.here / "sbatch"
    slow.write_text(SLOW_SBATCH.format(sbatch=shutil.which("sbatch")))
    slow.chmod(0o755)
    variables = {**launch.rig.variables, "PATH": f"{launch.here}:{os.environ['PATH']}"}
    words = [*launch.rig.prefix(), str(ISTHMUS), "launch", "slurm", f"{launch.name}.toml", "--islands", "2"]
    launcher = subprocess.Popen(words, cwd=launch.here, env=variables)
    wait_for((launch.here / "begun").exists)
    launcher.kill()
    launcher.wait()
    launch.type("down")
    launch.wait_for_nothing(AFTER_END_SECONDS)
    words = ("squeue", "-h", "--states=all", f"--name={launch.name}-home,{launch.name}-island", "-o", "%j %T")
    assert launch.rig.run(*words).stdout.split() == [f"{launch.name}-home", "CANCELLED"]


def test_what_is_printed_does_the_same_by_hand(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.type("slurm", f"{launch.name}.toml", "--islands", "2", "--print", "--to", str(launch.folder))
    for script in ("home.sh", "island.sh"):
        launch.rig.run("sbatch", script, cwd=launch.folder)
    launch.run.wait_for_merges(0, 1, why=launch.story)
    launch.rig.run("scancel", *(job["id"] for job in launch.rig.jobs()))
    launch.wait_for_nothing(PATIENCE)


def test_an_island_of_two_nodes_is_one_element_of_the_array(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.begin("--nodes-per-island", "2", islands=1)
    launch.run.wait_for_merges(0, why=launch.story)
    nodes = {job["node"] for job in launch.rig.jobs() if job["name"].endswith("-island")}
    assert [len(each.split(",")) + each.count("-") for each in nodes] == [2], nodes
    joined = [each["machine"] for each in launch.run.lines("events") if each["kind"] == "joined"]
    assert sorted(joined) == ["island-0-0", "island-0-1"]
    launch.type("down")
    launch.wait_for_nothing(AFTER_END_SECONDS)


@pytest.mark.parametrize(
    ("table", "found"),
    [('partition = "lwo"', "Did you mean 'low'?"), ("cpus = 3", "node configuration"), ('devices = "gpu:1"', "gres")],
)
def test_what_this_cluster_does_not_have_is_refused(launched: Callable[..., Launched], table: str, found: str) -> None:
    launch = launched(FOREVER, launch=table)
    refused = launch.type("slurm", f"{launch.name}.toml", check=False)
    assert (refused.returncode, found in refused.stderr) == (2, True), refused.stderr
    assert not launch.rig.jobs()
    assert not launch.folder.exists()


def test_a_launch_takes_about_as_long_as_the_same_commands_by_hand(
    launched: Callable[..., Launched], rig: SlurmRig, tmp_path: Path
) -> None:
    """Until the first merge with the votes of both islands; medians, one after the other."""
    seconds: dict[str, list[float]] = {"launched": [], "by hand": []}
    launch = launched(FOREVER)
    launch.type("slurm", f"{launch.name}.toml", "--islands", "2", "--print", "--to", str(tmp_path / "printed"))
    for number in range(REPEATS):
        folder = tmp_path / f"launched-{number}"
        run = LaunchedRun(folder / "run")
        begun = time.monotonic()
        launch.type("slurm", f"{launch.name}.toml", "--islands", "2", "--to", str(folder))
        wait_for(lambda run=run: run.merges_of(0, 1), launch.story)
        seconds["launched"].append(time.monotonic() - begun)
        launch.type("down", "--to", str(folder))
        seconds["by hand"].append(by_hand(rig, tmp_path / f"hand-{number}", tmp_path / "printed"))
    print(json.dumps(seconds))
    assert median(seconds["launched"]) / median(seconds["by hand"]) <= RATIO_MAX, seconds


CLUSTER = """\
[keys]
secret = "home.key"
[[machine]]
name = "home"
address = "{endpoint}"
public_key = "home.pub"
roles = ["syncer", "evaluator"]
"""


def by_hand(rig: SlurmRig, folder: Path, printed: Path) -> float:
    """The seconds that the same takes by the same commands, typed one after the other without an engine."""
    folder.mkdir()
    endpoint = f"tcp://{SUBNET}.2:7400"
    run = LaunchedRun(folder / "run")
    (folder / "machine.toml").write_text((printed / "machine.toml").read_text())
    (folder / "island.toml").write_text((printed / "island.toml").read_text())
    begun = time.monotonic()
    rig.run(str(ISTHMUS), "keygen", "home", cwd=folder)
    (folder / "cluster.toml").write_text(CLUSTER.format(endpoint=endpoint) + (printed / "run.toml").read_text())
    invite = ("--count", "16", "--for", "island-", "--cluster", "cluster.toml", "--to", "island.invite")
    variables = {**rig.variables, "XDG_STATE_HOME": str(folder / "state")}
    subprocess.run([*rig.prefix(), str(ISTHMUS), "invite", *invite], cwd=folder, env=variables, check=True)
    daemon = ("--name", "home", "--listen", endpoint, "--config", "machine.toml", "--run", "cluster.toml")
    join = ("join", "--invite", "island.invite", "--config", "island.toml", "--until-over", "--name")
    commands = [("daemon", *daemon, "--run-dir", "run", "--until-over"), (*join, "island-0"), (*join, "island-1")]
    log = (folder / "log").open("wb")
    processes = [
        subprocess.Popen([*rig.prefix(), str(ISTHMUS), *words], cwd=folder, env=variables, stdout=log, stderr=log)
        for words in commands
    ]
    try:
        wait_for(lambda: run.merges_of(0, 1), (folder / "log").read_text)
        return time.monotonic() - begun
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(PATIENCE)
        log.close()
