"""`isthmus launch ray` on a real Ray of this machine: lost nodes, scaling, the end, and what a launch costs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engines.launched_run import (
    FOREVER,
    ISTHMUS,
    TOKENS_PER_SECOND,
    Launch,
    LaunchedRun,
    compare_with_hands,
    hands,
    wait_for,
)
from tests.engines.ray_rig import RayRig, why_not

DOWN_SECONDS_MAX = 60.0
"""For `isthmus launch down`, with a grace of 20 s, on a machine that is busy with others: it took 29 s beside 30."""

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayRig]:
    """One cluster for all tests."""
    assert not why_not(), why_not()
    ray = RayRig(tmp_path_factory.mktemp("ray"))
    yield ray
    ray.close()


class Launched(Launch):
    """A launch on Ray; its machines have their folders in `there`."""

    engine = "ray"

    def __init__(self, rig: RayRig, folder: Path, tokens: int, launch: str = "") -> None:
        super().__init__(folder, folder.name, tokens, f"[launch]\n{launch}")
        self.rig, self.there = rig, rig.home / "isthmus" / self.name
        self.run, self.variables = LaunchedRun(self.there / "home" / "run"), dict[str, str]()

    def type(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command, env = [str(ISTHMUS), "launch", *words], {**self.rig.environment, **self.variables}
        done = subprocess.run(command, cwd=self.here, env=env, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    def is_gone(self) -> bool:
        return self.rig.is_empty()

    def story(self) -> str:
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
    slots = launch.slots()
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

    assert len(launch.wait_for_done()["per_learner"]) == 2
    launch.check_steps(rates)


def test_a_script_travels_and_trains_and_an_island_of_it_comes_back(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.be_a_script(100 * 2 * TOKENS_PER_SECOND)
    launch.begin()
    run, rig = launch.run, launch.rig
    run.wait_for_merges(0, 1, why=launch.story)
    pid = (launch.there / "island-1" / "pid").read_text()
    rig.kill(f"isthmus-{launch.name}", "island-1")
    wait_for(lambda: (launch.there / "island-1" / "pid").read_text() != pid, launch.story)
    run.wait_for_merges(0, 1, why=launch.story)
    # The daemon that has adopted the process of the script does not learn with which status it ends.
    assert len(launch.wait_for_done()["per_learner"]) == 2


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
    run.wait_for_merges(launch.slots()["island-0"], why=launch.story)
    launch.wait_for_done()
    launch.check_losses()
    launch.refuse("a run that goes on", "scale", "2")


def test_down_frees_all_and_the_same_launch_goes_on_and_the_controller_may_die(
    launched: Callable[..., Launched],
) -> None:
    launch = launched(FOREVER)
    launch.begin()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    launch.refuse("End it first", "ray", launch.file)
    launch.set_aside()
    assert launch.run.summary()["outcome"] == "interrupted"

    slot = launch.slots()["island-0"]  # It returns to the slot that it had.
    launch.begin(islands=1)
    launch.run.wait_for_merges(slot, why=launch.story)
    pids = launch.rig.pids()
    launch.rig.kill(f"isthmus-{launch.name}", "controller")
    wait_for(lambda: launch.members()["home"]["state"] == "runs", launch.story)
    launch.run.wait_for_merges(slot, why=launch.story)
    assert set(pids) <= set(launch.rig.pids())
    launch.set_aside()


def test_down_ends_soon_also_where_a_node_is_lost_and_there_is_no_other(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.begin()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    places = launch.rig.places()
    lost = next(name for name in ("island-1", "island-0") if places[name] != launch.rig.head)
    launch.rig.remove(places[lost])
    try:
        begun = time.monotonic()
        told = launch.type("down").stdout
        print(f"down with a lost node: {time.monotonic() - begun:.1f} s")
        assert time.monotonic() - begun < DOWN_SECONDS_MAX
        assert "of 3 before" in told
        assert "its run: interrupted" in told
        summary = launch.run.summary()
        assert (summary["outcome"], len(summary["per_learner"])) == ("interrupted", 2)
        assert summary["tokens_total"] > 0
        # Processes of the node are still here, unlike those of a machine that is lost; the fixture waits for their end.
        wait_for(lambda: not (launch.rig.actors() or launch.rig.places()), launch.story)
    finally:
        launch.rig.add()


def test_a_launcher_that_is_killed_half_way_leaves_nothing_that_down_does_not_find(
    launched: Callable[..., Launched],
) -> None:
    launch = launched(FOREVER)
    words = [str(ISTHMUS), "launch", "ray", launch.file, "--islands", "2"]
    launcher = subprocess.Popen(words, cwd=launch.here, env=launch.rig.environment, start_new_session=True)
    wait_for(launch.rig.actors)
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    launch.set_aside()


def test_what_is_printed_does_the_same_as_a_job(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.type("ray", launch.file, "--islands", "2", "--print", "--to", str(launch.folder))
    file = f"{launch.name}-on-ray.py"

    def submit(*words: str) -> None:
        job = ("job", "submit", "--address", launch.rig.dashboard, "--working-dir", str(launch.folder))
        command = [str(ISTHMUS.with_name("ray")), *job, "--", "python", file, *words]
        done = subprocess.run(command, env=launch.rig.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    submit()
    launch.run.wait_for_merges(0, 1, why=launch.story)
    submit("down")
    launch.wait_for_nothing()


def test_an_island_of_two_nodes(launched: Callable[..., Launched]) -> None:
    launch = launched(FOREVER)
    launch.begin("--nodes-per-island", "2", islands=1)
    launch.run.wait_for_merges(0, why=launch.story)
    assert set(launch.members()) == {"home", "island-0.0", "island-0.1"}
    launch.set_aside()


def test_what_this_cluster_does_not_have_is_refused(launched: Callable[..., Launched]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nowhere = f"127.0.0.1:{server.getsockname()[1]}"
    for table, found, more in (
        ('devices = "gpu:1"', "found each island: 1 node with {'CPU': 1, 'GPU': 1}; 0 of ", {}),
        ("cpus = 2", "found home: 1 node with {'CPU': 2}; 0 of ", {}),
        ("""extra = 'resources={"tape": 1},'""", "found home: 1 node with {'CPU': 1, 'tape': 1}; 0 of ", {}),
        ("extra = 'num_cpus=3,'", "launch.cpus", {}),
        ("extra = 'patience=3,'", "found ValueError: ", {}),
        ('partition = "high"', "none on Ray", {}),
        ("extra = 'num retries'", "invalid syntax", {}),
        ("", "expected an answer", {"RAY_ADDRESS": nowhere}),
    ):
        launch = launched(FOREVER, launch=table)
        launch.variables = more
        launch.refuse(found, "ray", launch.file)
        assert not launch.folder.exists()
    assert launch.rig.is_empty()


def test_a_launch_takes_about_as_long_as_the_same_commands_by_hand(
    launched: Callable[..., Launched], tmp_path: Path
) -> None:
    """Until the first merge with the votes of both islands."""
    launch = launched(FOREVER)

    def by_launch(number: int) -> float:
        begun = time.monotonic()
        launch.begin()
        wait_for(lambda: launch.run.merges_of(0, 1), launch.story)
        seconds = time.monotonic() - begun
        launch.type("down")
        return seconds

    def hands_after(number: int) -> float:
        seconds = by_hand(launch, tmp_path / f"hand-{number}")
        shutil.rmtree(launch.there)
        return seconds

    compare_with_hands(by_launch, hands_after)


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
    going_on = [f"{daemon} --run cluster.toml --run-dir run --until-over", f"{join}0", f"{join}1"]
    hands([words(line) for line in going_on], run, folder, variables)
    return time.monotonic() - begun
