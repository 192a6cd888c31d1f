"""`isthmus launch ray` on a real Ray of this machine: lost nodes, scaling, the end, and what a launch costs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engines.launched_run import FOREVER, TASK, TOKENS_PER_SECOND, LaunchedRun, median, wait_for
from tests.engines.ray_rig import RayRig, why_not
from tests.patience import PATIENCE
from tests.programs.engine.run.agreement import disagreements

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.timeout(1500)]

ISTHMUS = Path(sys.executable).with_name("isthmus")
AFTER_END_SECONDS = 10.0
RATIO_MAX = 1.5
STEPS_RATIO_MIN = 0.95
REPEATS = 3


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayRig]:
    """One cluster for all tests."""
    assert not why_not(), why_not()
    ray = RayRig(tmp_path_factory.mktemp("ray"))
    yield ray
    ray.close()


class Launched:
    """A launch in a folder of its own."""

    def __init__(self, rig: RayRig, folder: Path, tokens: int, launch: str = "") -> None:
        self.rig, self.here, self.name = rig, folder, folder.name.lower().replace("_", "-")[:40].rstrip("-")
        folder.mkdir(exist_ok=True)
        self.folder = folder / "launches" / self.name
        self.there = rig.home / "isthmus" / self.name
        self.run = LaunchedRun(self.there / "home" / "run")
        (folder / "paced.py").write_text(TASK)
        text = f'[run]\ntask = "paced.py:task"\ntokens = {tokens}\n[launch]\n{launch}'
        (folder / f"{self.name}.toml").write_text(text)

    def type(self, *words: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        """Type `isthmus launch` with words on the cluster; `more` are variables of its environment."""
        command, env = [str(ISTHMUS), "launch", *words], {**self.rig.environment, **more}
        done = subprocess.run(command, cwd=self.here, env=env, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    def begin(self, *more: str, islands: int = 2) -> None:
        self.type("ray", f"{self.name}.toml", "--islands", str(islands), *more)

    def members(self) -> dict[str, dict[str, str]]:
        """What is not over, by name."""
        return {each["name"]: each for each in json.loads(self.type("status", "--json").stdout)["members"]}

    def wait_for_nothing(self, seconds: float) -> None:
        """No actor, no placement group and no process is left, after so long."""
        wait_for(self.rig.is_empty, self.story, seconds)

    def story(self) -> str:
        """The ends of its logs, and what there is of it."""
        logs = {str(path.parent.name): path.read_text()[-1500:] for path in sorted(self.there.glob("*/log"))}
        found = {"actors": self.rig.actors(), "places": self.rig.places(), "pids": self.rig.pids()}
        return json.dumps({**found, **logs}, indent=1).replace("\\n", "\n")


@pytest.fixture
def launched(rig: RayRig, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Makes launches, which are down after the test."""
    with ExitStack() as stack:

        def make(tokens: int, **more: Any) -> Launched:
            one = Launched(rig, tmp_path, tokens, **more)
            stack.callback(lambda: one.folder.exists() and one.type("down", check=False))
            return one

        yield make
    wait_for(rig.is_empty, lambda: str((rig.actors(), rig.places(), rig.pids())))


def test_a_node_and_the_actor_of_the_home_are_lost_and_both_come_back(launched: Callable[..., Launched]) -> None:
    launch = launched(200 * 2 * TOKENS_PER_SECOND)
    launch.begin()
    run, rig = launch.run, launch.rig
    run.wait_for_merges(0, 1, why=launch.story)
    slots = {each["machine"]: int(each["host"][-1]) for each in run.lines("events") if each["kind"] == "joined"}
    places = rig.places()
    lost = next(name for name in ("island-1", "island-0") if places[name] != rig.head)
    gone, other = slots[lost], 1 - slots[lost]
    begun = run.now()
    wait_for(lambda: run.now() > begun + 10, launch.story)

    before = run.now()
    rig.remove(places[lost])
    rig.add()
    wait_for(lambda: rig.places()[lost] not in ("", places[lost]), launch.story)
    run.wait_for_merges(gone, other, why=launch.story)
    rates = run.steps_per_second(other, begun, before), run.steps_per_second(other, before, run.now())

    # Its daemon hears SIGTERM, or is killed: Ray also kills the children of a process that it ends.
    away = run.now()
    pid = (launch.there / "home" / "pid").read_text()
    rig.kill(f"isthmus-{launch.name}", "home")
    wait_for(lambda: (launch.there / "home" / "pid").read_text() != pid, launch.story)
    run.wait_for_merges(gone, other, why=launch.story)
    rates = (*rates, run.steps_per_second(other, away, run.now()))

    summary = wait_for(
        lambda: run.summary().get("outcome") != "interrupted" and run.summary(), launch.story, 2 * PATIENCE
    )
    launch.wait_for_nothing(AFTER_END_SECONDS)
    print(f"steps a second before, island lost, home lost: {', '.join(f'{each:.2f}' for each in rates)}")
    assert (summary["outcome"], len(summary["per_learner"])) == ("done", 2), summary
    assert disagreements(run.folder) == []
    assert min(rates[1:]) / rates[0] >= STEPS_RATIO_MIN


def test_it_scales_from_two_islands_to_four_to_one_and_ends(launched: Callable[..., Launched]) -> None:
    launch = launched(150 * 2 * TOKENS_PER_SECOND)
    launch.begin()
    run = launch.run
    run.wait_for_merges(0, 1, why=launch.story)
    launch.type("scale", "4")
    more = [launch.rig.add(), launch.rig.add()]
    run.wait_for_merges(0, 1, 2, 3, why=launch.story)
    launch.type("scale", "1")
    wait_for(lambda: set(launch.members()) == {"home", "island-0"}, launch.story)
    assert set(launch.rig.places()) == {"home", "island-0"}
    stays = set(launch.rig.places().values())
    for node in more:  # If it is free: the next test has as many nodes as there were, at least.
        if node not in stays:
            launch.rig.remove(node)
    left = next(int(each["host"][-1]) for each in run.lines("events") if each.get("machine") == "island-0")
    run.wait_for_merges(left, why=launch.story)

    summary = wait_for(run.summary, launch.story, 2 * PATIENCE)
    launch.wait_for_nothing(AFTER_END_SECONDS)
    assert summary["outcome"] == "done"
    assert disagreements(run.folder) == []
    losses = [line["eval_loss"] for line in run.lines("evaluations")]
    assert losses[-1] < losses[len(losses) // 2] < losses[0]
    refused = launch.type("scale", "2", check=False)
    assert (refused.returncode, "a run that goes on" in refused.stderr) == (2, True)


def test_down_frees_all_and_the_same_launch_goes_on_and_the_keeper_may_die(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.begin()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    again = launch.type("ray", f"{launch.name}.toml", check=False)
    assert (again.returncode, "End it first" in again.stderr) == (2, True)
    launch.type("down")
    launch.wait_for_nothing(AFTER_END_SECONDS)
    assert launch.run.summary()["outcome"] == "interrupted"

    launch.begin(islands=1)
    launch.run.wait_for_merges(0, why=launch.story)
    pids = launch.rig.pids()
    launch.rig.kill(f"isthmus-{launch.name}", "keeper")
    wait_for(lambda: launch.members()["home"]["state"] == "runs", launch.story)
    launch.run.wait_for_merges(0, why=launch.story)
    assert set(pids) <= set(launch.rig.pids())
    launch.type("down")
    launch.wait_for_nothing(AFTER_END_SECONDS)


def test_a_launcher_that_is_killed_half_way_leaves_nothing_that_down_does_not_find(
    launched: Callable[..., Launched],
) -> None:
    launch = launched(FOREVER)
    words = [str(ISTHMUS), "launch", "ray", f"{launch.name}.toml", "--islands", "2"]
    launcher = subprocess.Popen(words, cwd=launch.here, env=launch.rig.environment, start_new_session=True)
    wait_for(launch.rig.actors)
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    launch.type("down")
    launch.wait_for_nothing(AFTER_END_SECONDS)


def test_what_is_printed_does_the_same_as_a_job(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.type("ray", f"{launch.name}.toml", "--islands", "2", "--print", "--to", str(launch.folder))
    file = f"{launch.name}-on-ray.py"

    def submit(*words: str) -> None:
        job = ("job", "submit", "--address", launch.rig.dashboard, "--working-dir", str(launch.folder))
        command = [str(ISTHMUS.with_name("ray")), *job, "--", "python", file, *words]
        done = subprocess.run(command, env=launch.rig.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    submit()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    submit("down")
    launch.wait_for_nothing(AFTER_END_SECONDS)


def test_an_island_of_two_nodes(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.begin("--nodes-per-island", "2", islands=1)
    launch.run.wait_for_merges(0, why=launch.story)
    assert set(launch.members()) == {"home", "island-0.0", "island-0.1"}
    launch.type("down")
    launch.wait_for_nothing(AFTER_END_SECONDS)


def test_what_this_cluster_does_not_have_is_refused(launched: Callable[..., Launched]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nowhere = f"127.0.0.1:{server.getsockname()[1]}"
    for table, found, more in (
        ('devices = "gpu:1"', "found each island: 1 node with {'CPU': 1, 'GPU': 1}; 0 of ", {}),
        ("cpus = 2", "found home: 1 node with {'CPU': 2}; 0 of ", {}),
        ("""extra = 'resources={"tape": 1},'""", "found home: 1 node with {'CPU': 1, 'tape': 1}; 0 of ", {}),
        ("extra = 'num_cpus=3,'", "found TypeError: ", {}),
        ("extra = 'patience=3,'", "found ValueError: ", {}),
        ('partition = "high"', "none on Ray", {}),
        ("extra = 'num retries'", "SyntaxError", {}),
        ("", "expected an answer", {"RAY_ADDRESS": nowhere}),
    ):
        launch = launched(FOREVER, launch=table)
        refused = launch.type("ray", f"{launch.name}.toml", check=False, **more)
        assert (refused.returncode, found in refused.stderr) == (2, True), refused.stderr
        assert not launch.folder.exists()
    assert launch.rig.is_empty()


def test_a_launch_takes_about_as_long_as_the_same_commands_by_hand(
    launched: Callable[..., Launched], tmp_path: Path
) -> None:
    """Until the first merge with the votes of both islands; medians, one after the other."""
    seconds: dict[str, list[float]] = {"launched": [], "by hand": []}
    launch = launched(FOREVER)
    for number in range(REPEATS):
        begun = time.monotonic()
        launch.begin()
        wait_for(lambda: launch.run.merges_of(0, 1), launch.story)
        seconds["launched"].append(time.monotonic() - begun)
        launch.type("down")
        seconds["by hand"].append(by_hand(launch, tmp_path / f"hand-{number}"))
        shutil.rmtree(launch.there)
    print(json.dumps(seconds))
    assert median(seconds["launched"]) / median(seconds["by hand"]) <= RATIO_MAX, seconds


def by_hand(launch: Launched, folder: Path) -> float:
    """The seconds that the same takes by the same commands and files, typed one after the other without an engine."""
    folder.mkdir()
    run = LaunchedRun(folder / "run")
    for name in ("cluster.toml", "machine.toml"):
        (folder / name).write_text((launch.there / "home" / name).read_text().replace("../paced.py", "paced.py"))
    shutil.copy(launch.there / "paced.py", folder)
    (folder / "island.toml").write_text('[programs]\nmodules = ["paced.py"]\n')
    address = next(line for line in (folder / "cluster.toml").read_text().splitlines() if line.startswith("address"))
    variables = {**launch.rig.environment, "XDG_STATE_HOME": str(folder / "state")}

    def words(line: str) -> list[str]:
        return [str(ISTHMUS), *line.split()]

    daemon = f"daemon --name home --listen {json.loads(address.partition('= ')[2])} --config machine.toml"
    join = "join --invite island.invite --config island.toml --until-over --name island-"
    begun = time.monotonic()
    invite = "invite --count 16 --for island- --cluster cluster.toml --to island.invite"
    for line in ("keygen home", invite):
        subprocess.run(words(line), cwd=folder, env=variables, check=True, capture_output=True)
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen(words(line), cwd=folder, env=variables, stdout=log, stderr=log)
            for line in (f"{daemon} --run cluster.toml --run-dir run --until-over", f"{join}0", f"{join}1")
        ]
    try:
        wait_for(lambda: run.merges_of(0, 1), (folder / "log").read_text)
        return time.monotonic() - begun
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(PATIENCE)
