"""`isthmus launch kubernetes` on a real control plane: what its user sees, and what is left."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.engines.kubernetes_rig import Cluster, cluster, wait_for
from tests.engines.launched_run import (
    FOREVER,
    RATIO_MAX,
    REPEATS,
    STEPS_RATIO_MIN,
    TASK,
    TOKENS_PER_SECOND,
    LaunchedRun,
)
from tests.programs.engine.machine.namespaces import Namespaces
from tests.programs.engine.run.agreement import disagreements

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.timeout(1500)]

SECONDS_MAX: Final = 300.0
"""For anything that a test waits for, on a machine that is busy with others."""
LEFT_SECONDS_MAX: Final = 10.0
CALM_SECONDS: Final = 15.0
"""Of training before a preemption, to compare with."""
KINDS: Final = ("jobs", "pods", "services", "secrets", "configmaps")
FILE: Final = """\
[run]
task = "paced.py:task"
tokens = {tokens}
[program]
interval = 4
fragments = 2
[launch]
image = "isthmus"
{more}
"""
PACED: Final = TASK.replace("1e-3", "1e-2").replace(
    "time.sleep(0.2)", "time.sleep(0.004 if Path('/isthmus/hurry').exists() else 0.2 - time.time() % 0.2)"
)
"""Five steps a second, by the clock, so that what a busy machine is late by does not add up; until a test wants the
end."""
SOME: Final = 600 * 2 * TOKENS_PER_SECOND
"""Tokens that two islands need ten minutes for, unless they hurry."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


class Session:
    """A user in a folder, with a file to launch."""

    def __init__(self, rig: Cluster, folder: Path, name: str, *, tokens: int, more: str = "") -> None:
        self.rig, self.folder, self.name = rig, folder, name
        (folder / f"{name}.toml").write_text(FILE.format(tokens=tokens, more=more))
        (folder / "paced.py").write_text(f"from pathlib import Path\n{PACED}")
        binaries = f"{Path(sys.executable).parent}:{rig.environment['PATH']}"
        self.environment = {**rig.environment, "PATH": binaries, "XDG_STATE_HOME": str(folder / "state")}

    def isthmus(self, *words: str, status: int = 0) -> str:
        """What a command prints; fails with another exit status."""
        done = subprocess.run(
            ["isthmus", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def launch(self, *words: str) -> str:
        return self.isthmus("launch", "kubernetes", f"{self.name}.toml", *words)

    @property
    def run(self) -> LaunchedRun:
        return LaunchedRun(self.rig.claim(self.name) / "run")

    def voters(self) -> list[list[int]]:
        """The slots that each merge so far had votes of, phases of the end apart."""
        return [line["voters"] for line in self.run.lines("merges") if line["kind"] != "final"]

    def merges_with(self, slots: int, after: int = 0) -> int:
        """How many merges there are once one behind `after` has votes of so many slots; waits for it."""

        def there() -> int:
            self.rig.check()
            voters = self.voters()
            return len(voters) if any(len(each) == slots for each in voters[after:]) else 0

        return int(wait_for(there, SECONDS_MAX, f"a merge of {slots} behind the first {after}"))

    @contextmanager
    def comes_back(self, machine: str, what: str) -> Iterator[str]:
        """The pod of a machine, which something is to take away; waits for another one, and merges of all with it."""
        (pod,), lives, begun = self.pods(machine), self.lives(machine), time.monotonic()
        yield pod
        wait_for(lambda: self.pods(machine) not in ([], [pod]), SECONDS_MAX, f"another pod of {machine}")
        wait_for(lambda: f"pods {pod}" not in self.left(), SECONDS_MAX, f"an end of {pod}")
        if machine != "home":
            wait_for(lambda: self.lives(machine) > lives, SECONDS_MAX, f"another life of {machine}")
        self.merges_with(2, after=len(self.voters()))
        print(f"{machine} {what}: merged again {time.monotonic() - begun:.1f} s later")

    def lives(self, machine: str) -> int:
        """How often the learner of an island has been started again."""
        events = self.run.lines("events")
        hosts = {each["host"] for each in events if each["kind"] == "joined" and each["machine"] == machine}
        return sum(each["kind"] == "restarted" and each["host"] in hosts for each in events)

    def pods(self, machine: str = "") -> list[str]:
        """The pods of a machine, or of all, that are not leaving."""
        jobs = f"{self.name}-{machine}"
        return [
            pod["metadata"]["name"]
            for pod in self.rig.items("pods")
            if "deletionTimestamp" not in pod["metadata"]
            and _is_of(jobs, pod["metadata"].get("labels", {}).get("job-name", ""))
        ]

    def hurry(self) -> None:
        """Have the islands that there are take next to no time for a step."""
        for pod in self.pods():
            if not pod.startswith(f"{self.name}-home"):
                (self.rig.folder / "pods" / pod / "volumes" / "work" / "hurry").touch()

    def state(self) -> str:
        return self.isthmus("launch", "status", f"{self.name}.toml")

    def left(self) -> list[str]:
        """What the cluster has of it, but for the claim."""
        names = [f"{kind} {each['metadata']['name']}" for kind in KINDS for each in self.rig.items(kind)]
        return [name for name in names if name.split()[1].startswith(self.name)]


def _is_of(jobs: str, job: str) -> bool:
    """Whether a Job is the one of that name or, where it ends with '-', one that begins so."""
    return job.startswith(jobs) if jobs.endswith("-") else job == jobs


def test_a_launch_is_merged_nearly_as_soon_as_the_same_commands_by_hand(rig: Cluster, tmp_path: Path) -> None:
    """Medians of seconds to the first merge with both islands' votes, in pairs."""
    launched, by_hand = [], []
    for number in range(REPEATS):
        folder = tmp_path / f"launch-{number}"
        folder.mkdir()
        session = Session(rig, folder, f"pace-{number}", tokens=FOREVER)
        begun = time.monotonic()
        session.launch("--islands", "2")
        session.merges_with(2)
        launched.append(time.monotonic() - begun)
        assert "kubectl cp" in session.isthmus("launch", "down")
        assert session.left() == []
        assert session.run.summary()["outcome"] == "interrupted"
        by_hand.append(_seconds_by_hand(tmp_path / f"hand-{number}", session.folder / "launches" / session.name))
    ratio = statistics.median(launched) / statistics.median(by_hand)
    print(f"launched {launched}, by hand {by_hand}, ratio of medians {ratio:.2f}")
    assert ratio <= RATIO_MAX, (launched, by_hand)


def _seconds_by_hand(folder: Path, launch: Path) -> float:
    """Seconds to the first merge with both votes of the same commands, typed on three machines."""
    machines = ("home", "island-0", "island-1")
    namespaces = Namespaces(*machines, subnet="10.178.7")
    address = f"tcp://{namespaces.addresses['home']}:7400"
    running = list[subprocess.Popen[bytes]]()

    here = folder / "here"  # As in pods, the folder of each machine has the same name there.

    def start(machine: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "JAX_", "XLA_"))},
            "HOME": str(here),
            "NUMBA_CACHE_DIR": str(here / "numba"),  # An image cannot be written to, and has nothing compiled either.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        script = f'mount --bind {folder / machine} {here}; cd {here}; exec isthmus "$@"'
        with (folder / machine / "log").open("ab") as log:
            command = [*namespaces.prefix(machine), "unshare", "--mount", "sh", "-ec", script, "sh", *words]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    try:
        here.mkdir(parents=True)
        for machine in machines:
            (folder / machine).mkdir()
        home = folder / "home"
        cluster = (launch / "cluster.toml").read_text()
        (home / "cluster.toml").write_text(cluster.replace(f"tcp://{launch.name}-home:7400", address))
        (home / "machine.toml").write_text((launch / "machine.toml").read_text())
        for machine in machines:
            for name in ("island.toml", "paced.py"):
                (folder / machine / name).write_text((launch / name).read_text())
        begun = time.monotonic()
        assert start("home", "keygen", "home").wait() == 0
        words = ("--count", "16", "--for", "island-", "--cluster", "cluster.toml", "--to", "island.invite")
        assert start("home", "invite", *words).wait() == 0, (home / "log").read_text()
        words = ("--config", "machine.toml", "--run", "cluster.toml", "--run-dir", "run", "--resume-or-start")
        running.append(start("home", "daemon", "--name", "home", "--listen", address, *words, "--until-over"))
        for machine in machines[1:]:
            (folder / machine / "island.invite").write_bytes((home / "island.invite").read_bytes())
            (folder / machine / "island.invite").chmod(0o600)
            words = ("--invite", "island.invite", "--name", machine, "--config", "island.toml")
            running.append(start(machine, "join", *words, "--until-over"))

        def merged() -> bool:
            assert all(process.poll() is None for process in running), (home / "log").read_text()
            return any(len(line["voters"]) == 2 for line in LaunchedRun(home / "run").lines("merges"))

        wait_for(merged, SECONDS_MAX, "a merge by hand")
        return time.monotonic() - begun
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(120)
        namespaces.close()


def test_preempted_islands_and_a_preempted_home_come_back_and_the_run_ends(rig: Cluster, tmp_path: Path) -> None:
    session = Session(rig, tmp_path, "spot", tokens=SOME, more="cpus = 1")
    session.launch("--islands", "2", "--grace", "30")
    session.merges_with(2)
    run = session.run
    begun = run.now()
    slots = {each["machine"]: int(each["host"][-1]) for each in run.lines("events") if each["kind"] == "joined"}
    other = slots["island-0"]
    wait_for(lambda: run.now() > begun + CALM_SECONDS, SECONDS_MAX, "some seconds of training")
    before = run.now()
    with session.comes_back("island-1", "is deleted, as by a drain") as pod:
        rig.kubectl("delete", "pod", pod, "--wait=false")
    rates = [run.steps_per_second(other, begun, before), run.steps_per_second(other, before, run.now())]
    with session.comes_back("island-0", "is preempted by the scheduler") as pod:
        _preempt(rig, pod)
    with session.comes_back("island-1", "is lost with its node") as pod:
        lost = rig.folder / "lost" / rig.node(pod)
        lost.touch()
        wait_for(lost.read_text, SECONDS_MAX, "a node without power")
        rig.kubectl("delete", "node", lost.name)  # As the controller of a cloud does it.
    lost.unlink()
    away = run.now()
    with session.comes_back("home", "is deleted") as pod:
        rig.kubectl("delete", "pod", pod, "--wait=false")
    rates.append(run.steps_per_second(other, away, run.now()))
    print(f"steps/s before, island away, home away: {', '.join(f'{each:.2f}' for each in rates)}")
    assert {slot for voters in session.voters() for slot in voters} == {0, 1}
    copy = session.state()
    assert f"kubectl cp {session.pods('home')[0]}:/isthmus/run runs/spot" in copy
    rig.kubectl("delete", "pod", "urgent", "--ignore-not-found")
    session.hurry()
    wait_for(lambda: (run.folder / "over.json").exists(), SECONDS_MAX, "the end of the run")
    wait_for(lambda: not session.left(), SECONDS_MAX, "an empty cluster")
    assert "spot" in [each["metadata"]["name"] for each in rig.items("persistentvolumeclaims")]
    assert (run.summary()["outcome"], len(run.summary()["per_learner"])) == ("done", 2)
    assert disagreements(run.folder) == []
    assert min(rates[1:]) / rates[0] >= STEPS_RATIO_MIN


@pytest.mark.parametrize("is_by_hand", [False, True])
def test_a_run_that_is_done_leaves_nothing_but_its_claim(rig: Cluster, tmp_path: Path, is_by_hand: bool) -> None:
    session = Session(rig, tmp_path, "typed" if is_by_hand else "short", tokens=64 * 1500)
    if is_by_hand:
        session.launch("--islands", "2", "--print", "--to", "printed")
        subprocess.run(["sh", "submit.sh"], cwd=tmp_path / "printed", env=session.environment, check=True)
        for secret in ("home.key", "island.invite"):
            assert (tmp_path / "printed" / secret).stat().st_mode & 0o777 == 0o600
    else:
        session.launch("--islands", "2")
    wait_for(lambda: session.pods("home"), SECONDS_MAX, "a pod of the home")
    run = session.run
    session.merges_with(2)
    session.hurry()
    wait_for(lambda: not session.pods("home"), SECONDS_MAX, "the end of the home")
    ended = time.monotonic()
    wait_for(lambda: not session.left(), LEFT_SECONDS_MAX, "nothing left")
    print(f"nothing left {time.monotonic() - ended:.1f} s after the home's pod")
    assert run.summary()["outcome"] == "done"
    assert disagreements(run.folder) == []
    if is_by_hand:
        return
    # Scale of what is over is refused; status says how to get at the run folder, by a pod that works.
    assert "that goes on" in session.isthmus("launch", "scale", "3", status=2)
    assert "kubectl apply -f" in session.state()
    copy = session.folder / "launches" / "short" / "copy.yaml"
    rig.kubectl("apply", "-f", str(copy))
    rig.kubectl("wait", "--for=condition=Ready", "pod/short-copy", "--timeout=120s")
    session.isthmus("launch", "down")
    assert session.left() == []


def test_scaled_up_and_down_while_it_trains(rig: Cluster, tmp_path: Path) -> None:
    session = Session(rig, tmp_path, "wide", tokens=SOME)
    session.launch("--islands", "2")
    merges = session.merges_with(2)
    session.isthmus("launch", "scale", "4")
    merges = session.merges_with(4, after=merges)
    session.isthmus("launch", "scale", "1")
    wait_for(lambda: len(session.pods()) == 2, SECONDS_MAX, "one island and the home")
    wait_for(lambda: _last_learners(session) == 1, SECONDS_MAX, "merges of one island")
    losses = [line["loss"] for line in session.run.lines("metrics") if line.get("loss") is not None]
    assert statistics.mean(losses[-20:]) < statistics.mean(losses[:20])
    assert "17" in session.isthmus("launch", "scale", "17", status=2)
    run = session.run
    session.hurry()
    wait_for(lambda: not session.pods("home"), SECONDS_MAX, "the end of the home")
    wait_for(lambda: not session.left(), LEFT_SECONDS_MAX, "nothing left")
    assert run.summary()["outcome"] == "done"
    assert disagreements(run.folder) == []


def _last_learners(session: Session) -> int:
    return len(session.voters()[-1])


@pytest.mark.parametrize("after", ["secrets", "configmaps", "jobs"])
def test_down_frees_what_a_killed_launcher_has_left(rig: Cluster, tmp_path: Path, after: str) -> None:
    session = Session(rig, tmp_path, f"cut-{after}", tokens=FOREVER)
    words = ["isthmus", "launch", "kubernetes", f"{session.name}.toml"]
    launcher = subprocess.Popen(words, cwd=tmp_path, env=session.environment)
    wait_for(
        lambda: [each for each in rig.items(after) if each["metadata"]["name"].startswith(session.name)],
        SECONDS_MAX,
        after,
    )
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    session.isthmus("launch", "down")
    assert session.left() == []


def test_wrong_requests_submit_nothing(rig: Cluster, tmp_path: Path) -> None:
    session = Session(rig, tmp_path, "wrong", tokens=FOREVER, more='devices = "gpu:1"')
    cases = {
        ("--set", "run.slots_max=2", "--islands", "3"): "slots_max",
    }
    for words, sign in cases.items():
        assert sign in session.isthmus("launch", "kubernetes", "wrong.toml", *words, status=2)
    for more, sign in {
        'namespace = "nowhere"': "kubectl create namespace NAME",
        'devices = "example.com/abacus:1"': "example.com/abacus",
        'partition = "high"': "launch.partition",
        'memory = "much"': "much",
        'extra = "nodeSelector: 1"': "nodeSelector",
    }.items():
        wrong = Session(rig, tmp_path, "wrong", tokens=FOREVER, more=more)
        assert sign in wrong.isthmus("launch", "kubernetes", "wrong.toml", status=2)
    session = Session(rig, tmp_path, "wrong", tokens=FOREVER)
    nowhere = tmp_path / "nowhere.json"
    nowhere.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", rig.config.read_text()))
    session.environment["KUBECONFIG"] = str(nowhere)
    assert "use-context" in session.isthmus("launch", "kubernetes", "wrong.toml", status=2)
    session.environment["KUBECONFIG"] = str(rig.guest)
    assert "launch.namespace" in session.isthmus("launch", "kubernetes", "wrong.toml", status=2)
    session.environment["PATH"] = str(Path(sys.executable).parent)
    assert "Install it" in session.isthmus("launch", "kubernetes", "wrong.toml", status=2)
    assert session.left() == []
    assert not (tmp_path / "launches").exists()


def _preempt(rig: Cluster, victim: str) -> None:
    """A pod of high priority that wants the node of another pod."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    rig.api("POST", path, {"metadata": {"name": "high"}, "value": 1000})
    container = {"name": "sleep", "image": "any", "command": ["sleep", "30"], "resources": {"requests": {"cpu": "2"}}}
    spec = {"priorityClassName": "high", "containers": [container], "restartPolicy": "Never"}
    spec["nodeSelector"] = {"kubernetes.io/hostname": rig.node(victim)}
    rig.api("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "urgent"}, "spec": spec})
