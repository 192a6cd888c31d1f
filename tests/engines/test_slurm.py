"""`isthmus launch slurm` on a real Slurm of this machine: preemptions, scaling, the end, and what a launch costs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engines.launched_run import (
    AFTER_END_SECONDS,
    FOREVER,
    ISTHMUS,
    TOKENS_PER_SECOND,
    Launch,
    LaunchedRun,
    compare_with_hands,
    hands,
    wait_for,
)
from tests.engines.slurm_rig import SUBNET, SlurmRig, why_not
from tests.patience import PATIENCE

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmRig]:
    """One Slurm for all tests: at a site that does not warn batch scripts, as Slurm is by itself."""
    assert not why_not(), why_not()
    slurm = SlurmRig(tmp_path_factory.mktemp("slurm"), warns=False)
    yield slurm
    slurm.close()


class Launched(Launch):
    """A launch on Slurm."""

    engine = "slurm"

    def __init__(self, rig: SlurmRig, folder: Path, tokens: int, launch: str = 'partition = "low"\ncpus = 1\n') -> None:
        more = f"[program]\ninterval = 6\n[launch]\n{launch}"
        super().__init__(folder, f"t{os.getpid()}-{folder.name}", tokens, more)
        self.rig, self.run = rig, LaunchedRun(self.folder / "run")

    def type(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.rig.run(str(ISTHMUS), "launch", *words, cwd=self.here, check=check)

    @contextmanager
    def preempted(self, member: str) -> Iterator[None]:
        """The node of a member is another's; it has been requeued, and begins elsewhere."""
        job = self.members()[member]
        words = ("--partition=high", f"--nodelist={job['node']}", "--ntasks=1", "--cpus-per-task=2", "--parsable")
        hog = self.rig.run("sbatch", *words, "--output=/dev/null", "--wrap=sleep 3600", cwd=self.here).stdout.strip()
        try:
            wait_for(lambda: self.members()[member]["state"] == "PENDING", self.story)
            # By itself it would wait for two minutes.
            self.rig.run("scontrol", "update", f"job={self.members()[member]['id']}", "StartTime=now")
            wait_for(lambda: self.members()[member]["state"] == "RUNNING", self.story)
            yield
        finally:
            self.rig.run("scancel", hog)

    def is_gone(self) -> bool:
        return not self.rig.jobs() and not self.rig.pids()

    def story(self) -> str:
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
    slots = launch.slots()
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

    assert len(launch.wait_for_done()["per_learner"]) == 2
    launch.check_steps(rates)
    assert len(lives) == 2, "a learner died with the home"


def test_a_script_trains_on_the_nodes_and_an_island_of_it_comes_back(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.be_a_script(100 * 2 * TOKENS_PER_SECOND)
    launch.begin()
    run = launch.run
    run.wait_for_merges(0, 1, why=launch.story)
    slots = launch.slots()
    with launch.preempted("island-1"):
        run.wait_for_merges(*slots.values(), why=launch.story)
    summary = launch.wait_for_done()
    assert (len(summary["per_learner"]), summary["scripts_unfinished"]) == (2, [])


def test_it_scales_from_two_islands_to_four_to_one_and_ends(launched: Callable[..., Launched]) -> None:
    launch = launched(100 * 2 * TOKENS_PER_SECOND)
    launch.begin()
    run = launch.run
    run.wait_for_merges(0, 1, why=launch.story)
    launch.type("scale", "4")
    run.wait_for_merges(0, 1, 2, 3, why=launch.story)
    launch.type("scale", "1")
    wait_for(lambda: set(launch.members()) == {"home", "island-0"}, launch.story)
    run.wait_for_merges(launch.slots()["island-0"], why=launch.story)
    launch.refuse("from 1 to 16 islands", "scale", "17")
    launch.wait_for_done()
    launch.check_losses()
    launch.refuse("found one that is done", "scale", "2")
    launch.refuse("which is done", "slurm", launch.file)


def test_down_frees_all_and_the_same_launch_goes_on(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.begin()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    launch.refuse("End it first", "slurm", launch.file)
    launch.set_aside()
    assert launch.run.summary()["outcome"] == "interrupted"
    launch.begin()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    launch.set_aside()


SLOW_SBATCH = """#!/bin/sh
case $* in
*--parsable*) touch "$(dirname "$0")/begun"; sleep 2 ;;
esac
exec {sbatch} "$@"
"""


IN_A_CONTAINER = """
[run]
tokens = {tokens}
[task]
layers = 1
width = 16
heads = 2
context = 16
data = ["{there}/corpus"]
[launch]
partition = "low"
cpus = 1
on_machines = ["{there}"]
extra = '''
srun() {{ local o=(); while [[ $1 == -* ]]; do o+=("$1"); shift; done
    command srun "${{o[@]}}" unshare --mount sh -c 'mount --bind {data} {there} && exec "$@"' sh "$@"; }}
'''
"""


def test_data_that_only_containers_have(launched: Callable[..., Launched], tmp_path: Path) -> None:
    """A mount namespace stands in for a container: where the command is typed, nothing is in the folder of the data."""
    launch = launched(FOREVER)
    data, there = tmp_path / "data", tmp_path / "there"
    (data / "corpus").mkdir(parents=True)
    there.mkdir()
    (data / "corpus" / "words.txt").write_text("to be or not to be, that is the question. " * 4000)
    (launch.here / launch.file).write_text(IN_A_CONTAINER.format(tokens=FOREVER, there=there, data=data))
    launch.begin()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    assert not list(there.iterdir())
    config = tomllib.loads((launch.run.folder / "config.toml").read_text())
    assert config["task"]["data"] == [f"{there}/corpus"]
    assert "lr" in tomllib.loads((launch.folder / "cluster.toml").read_text())["task"]
    assert "lr" not in tomllib.loads((launch.folder / "run.toml").read_text())["task"]
    launch.set_aside()
    assert launch.run.summary()["outcome"] == "interrupted"


def test_a_launcher_that_is_killed_half_way_leaves_nothing_that_down_does_not_find(
    launched: Callable[..., Launched],
) -> None:
    """It is killed while sbatch has not answered yet, which goes on to submit the home."""
    launch = launched(FOREVER)
    slow = launch.here / "sbatch"
    slow.write_text(SLOW_SBATCH.format(sbatch=shutil.which("sbatch")))
    slow.chmod(0o755)
    variables = {**launch.rig.variables, "PATH": f"{launch.here}:{os.environ['PATH']}"}
    words = [*launch.rig.prefix(), str(ISTHMUS), "launch", "slurm", launch.file, "--islands", "2"]
    launcher = subprocess.Popen(words, cwd=launch.here, env=variables)
    wait_for((launch.here / "begun").exists)
    launcher.kill()
    launcher.wait()
    launch.set_aside()
    words = ("squeue", "-h", "--states=all", f"--name={launch.name}-home,{launch.name}-island", "-o", "%j %T")
    assert launch.rig.run(*words).stdout.split() == [f"{launch.name}-home", "CANCELLED"]


def test_what_is_printed_does_the_same_by_hand(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.type("slurm", launch.file, "--islands", "2", "--print", "--to", str(launch.folder))
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
    launch.set_aside()


def test_islands_that_share_no_folder_get_the_invitation_in_their_environment(
    launched: Callable[..., Launched],
) -> None:
    """Theirs are below /tmp; a home that is elsewhere after a preemption submits them anew."""
    launch = launched(FOREVER)
    (launch.here / launch.file).write_text(
        f'[run]\ntokens = {FOREVER}\n[launch]\npartition = "low"\ncpus = 1\ninvite_by = "env"\n'
    )
    launch.begin()
    run = launch.run
    run.wait_for_merges(0, 1, why=launch.story)
    launch.type("scale", "3")
    run.wait_for_merges(0, 1, 2, why=launch.story)
    former = {name: member["id"] for name, member in launch.members().items()}
    places = {process_folder(pid) for pid in launch.rig.pids()}
    apart = {place for place in places if place.parent == Path("/tmp")}
    assert len(apart) == 3, places
    assert not list(launch.folder.glob("island-*.log"))
    with launch.preempted("home"):
        run.wait_for_merges(0, 1, 2, why=launch.story)
    now = {name: member["id"] for name, member in launch.members().items()}
    assert now.keys() == former.keys()
    assert not {now[name] for name in now if name != "home"} & set(former.values())
    launch.set_aside()
    for place in apart:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    ("table", "found"),
    [('partition = "lwo"', "Did you mean 'low'?"), ("cpus = 3", "node configuration"), ('devices = "gpu:1"', "gres")],
)
def test_what_this_cluster_does_not_have_is_refused(launched: Callable[..., Launched], table: str, found: str) -> None:
    launch = launched(FOREVER, launch=table)
    launch.refuse(found, "slurm", launch.file)
    assert not launch.rig.jobs()
    assert not launch.folder.exists()


def test_a_launch_takes_about_as_long_as_the_same_commands_by_hand(
    launched: Callable[..., Launched], rig: SlurmRig, tmp_path: Path
) -> None:
    """Until the first merge with the votes of both islands."""
    launch = launched(FOREVER)
    launch.begin("--print", "--to", str(tmp_path / "printed"))

    def by_launch(number: int) -> float:
        folder = tmp_path / f"launched-{number}"
        run = LaunchedRun(folder / "run")
        begun = time.monotonic()
        launch.begin("--to", str(folder))
        wait_for(lambda: run.merges_of(0, 1), launch.story)
        seconds = time.monotonic() - begun
        launch.type("down", "--to", str(folder))
        return seconds

    compare_with_hands(by_launch, lambda number: by_hand(rig, tmp_path / f"hand-{number}", tmp_path / "printed"))


def process_folder(pid: int) -> Path:
    """The working folder of a process; / if it is over."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cwd").readlink()
    return Path("/")


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
    hands([[*rig.prefix(), str(ISTHMUS), *words] for words in commands], run, folder, variables)
    return time.monotonic() - begun
