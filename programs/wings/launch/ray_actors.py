"""What `isthmus launch ray` has in a cluster: an actor for each machine, and one for all of them.

Theory of operation. The launcher makes one detached actor, the `Controller`, so it may be killed at any moment. The
controller compares, turn by turn, the machines that are wanted with the actors that there are. The home and each island
have a placement group of their own: what has a place works, and waits for no other. A `MachineActor` is a detached
actor, too, which Ray starts again wherever its group is; it runs one command of isthmus, which the kernel terminates
with it, and its next life waits until that has left. Once the home's command ends with the run, or no island is wanted,
nothing is; after the last machine the controller goes. One that is started again finds the actors by their names.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put
from ray.util.placement_group import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from isthmus.runtime.system.disk import opened_at_end
from isthmus.runtime.system.files import put_bytes, read_bytes, read_text

NAME: Final = "controller"  # Of the actor that makes the others.
HOME: Final = "home"
OVER: Final = {0: "done", 1: "failed", 2: "failed"}  # A command with another exit status is started again.
NOTHING: Final = {"end": "", "machines": {}}  # The state of a run that has no controller.
NOWHERE: Final = {"node": "", "at": "", "status": None, "state": "waits for a place"}
OPTIONS: Final = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}  # Resources that have one of their own.
TURN_SECONDS: Final = 0.3
ANSWER_SECONDS: Final = 5.0  # For the controller, until it is asked again.
LATE_SECONDS: Final = 5.0  # Beyond the grace, until a command is killed.
LINES_MAX: Final = 8  # Of what a command has said last, in the state of its machine.
ISTHMUS: Final = (sys.executable, "-m", "isthmus.programs.command")


@final
class MachineActor:
    """An actor that runs one command in a folder of its own."""

    def __init__(self, name: str, plan: Any) -> None:
        self._name, self._plan, self._host = name, plan, ray.util.get_node_ip_address()
        self._folder = Path(plan.folder).expanduser() / name
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in plan.files:  # As a whole: several machines may share the folder.
            put_bytes(self._folder.parent / file, read_bytes(Path(file)), mode=Path(file).stat().st_mode & 0o777)
        self._child: subprocess.Popen[bytes] | None = None
        os.environ["XDG_STATE_HOME"] = str(self._folder / "state")
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # Ray adds its copy of the files, as other modules.
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path != str(Path.cwd()))
        late = time.monotonic() + plan.grace + LATE_SECONDS
        with suppress(OSError):  # Until the command of this actor's former life has left.
            while Path("/proc", pid := (self._folder / "pid").read_text(), "cwd").readlink() == self._folder:
                if time.monotonic() > late:
                    os.kill(int(pid), signal.SIGKILL)
                time.sleep(TURN_SECONDS)

    def home(self) -> dict[str, Any]:
        """Begin the run or go on with it, unless its daemon is there; the state, and the invitation for islands."""
        if self._is_to_start():
            if not (self._folder / f"{HOME}.key").exists():
                self._call(f"isthmus keygen {HOME}")
            with socket.create_server((self._host, self._plan.port)) as server:
                address = f"tcp://{self._host}:{server.getsockname()[1]}"
            self._write("cluster.toml", self._plan.cluster.replace("{address}", address, 1))
            self._write("machine.toml", self._plan.home_machine)
            for command in filter(None, (self._plan.settle, self._plan.invite)):
                self._call(command)
            self._start(self._plan.daemon.format(address=address))
        return {**self._state(), "invitation": read_text(self._folder / "island.invite")}

    def island(self, invitation: str) -> dict[str, Any]:
        """Join, unless it has; the invitation has another address once the home came up elsewhere. The state."""
        self._write("island.invite", invitation)
        if self._is_to_start():
            self._write("machine.toml", self._plan.island_machine)
            island, _, rank = self._name.partition(".")
            self._start(self._plan.join.format(name=self._name, island=island, rank=rank))
        return self._state()

    def leave(self) -> None:
        """Have the command leave; returns once it is gone."""
        if self._child is not None:
            self._child.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(self._plan.grace + LATE_SECONDS)
            self._child.kill()

    def _is_to_start(self) -> bool:
        return self._child is None or self._child.poll() not in (None, *OVER)

    def _write(self, name: str, text: str) -> None:
        """Write a file as a whole, which others cannot read, unless it is so already."""
        path = self._folder / name
        if not path.exists() or read_text(path) != text:
            put_bytes(path, text.encode(), mode=0o600)

    def _call(self, command: str) -> None:
        done = subprocess.run([*ISTHMUS, *command.split()[1:]], cwd=self._folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"`{command}` on {self._host}: {done.stderr.strip() or done.returncode}")

    def _start(self, command: str) -> None:
        """Start a command, which the kernel terminates when this process is gone."""
        words = ["setpriv", "--pdeathsig", "TERM", *ISTHMUS, *command.split()[1:]]
        with opened_at_end(self._folder / "log") as log:
            self._child = subprocess.Popen(words, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        put_bytes(self._folder / "pid", str(self._child.pid).encode())

    def _state(self) -> dict[str, Any]:
        lines = read_text(self._folder / "log", "replace").splitlines()
        status = None if self._child is None else self._child.poll()
        state = "runs" if status is None else "\n".join([OVER.get(status, "starts again"), *lines[-LINES_MAX:]])
        return {"node": self._host, "at": str(self._folder), "status": status, "state": state}


@final
class Controller:
    """The actor that keeps the others."""

    def __init__(self, plan: Any) -> None:
        self._plan = plan
        self._actors = {name: ray.get_actor(name) for name in ray.util.list_named_actors() if name != NAME}
        self._calls, self._states = dict[str, Any](), dict[str, dict[str, Any]]()
        self._leaving = dict[str, float]()  # Until when.
        self._invitation = self._where = self._end = ""
        self.want(len({name.partition(".")[0] for name in self._actors} - {HOME}) or plan.islands)
        threading.Thread(target=self._keep, name="keep", daemon=True).start()

    def want(self, islands: int) -> None:
        """Have so many islands from now on; none: set the run aside, and free everything."""
        self._islands = islands
        self._end = self._end or ("" if islands else "interrupted")

    def status(self) -> dict[str, Any]:
        """How it ends, if it does, and the state of each machine."""
        return {"end": self._end, "machines": {name: self._states.get(name, NOWHERE) for name in self._actors}}

    def _keep(self) -> None:
        """Keep them until the end, and note it if the run had begun; Ray starts this actor again after an error."""
        try:
            while not self._end or self._actors:
                self._turn()
                time.sleep(TURN_SECONDS)
            _internal_kv_put(self._plan.run, f"{self._end}\n{self._where}", bool(self._where), namespace=NAME)
            ray.kill(ray.get_runtime_context().current_actor)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _turn(self) -> None:
        parts = [""] if self._plan.nodes == 1 else [f".{rank}" for rank in range(self._plan.nodes)]
        groups = {f"island-{number}": [f"island-{number}{part}" for part in parts] for number in range(self._islands)}
        groups = {} if self._end else {HOME: [HOME], **groups}
        for group, names in groups.items():
            if not self._actors.keys() >= set(names):
                self._place(group, names)
        wanted = {name for names in groups.values() for name in names} - self._leaving.keys()
        for name, actor in list(self._actors.items()):
            if name in self._calls and ray.wait([self._calls[name]], timeout=0)[0]:
                self._take(name, self._calls.pop(name))
            if name not in wanted:
                self._dismiss(name, actor)
            elif name == HOME and name not in self._calls:
                self._calls[name] = actor.home.remote()
            elif self._invitation and name not in self._calls:
                self._calls[name] = actor.island.remote(self._invitation)

    def _place(self, group: str, names: Sequence[str]) -> None:
        """Make a group's actors, on different nodes."""
        needs, machine = machine_of(self._plan, is_home=group == HOME)
        try:
            place = get_placement_group(group)
        except ValueError:
            place = placement_group([needs] * len(names), "STRICT_SPREAD", name=group, lifetime="detached")
        for rank, name in enumerate(names):
            there = PlacementGroupSchedulingStrategy(place, placement_group_bundle_index=rank)
            named = machine.options(name=name, get_if_exists=True, lifetime="detached", scheduling_strategy=there)
            self._actors[name] = named.remote(name, self._plan)

    def _take(self, name: str, call: Any) -> None:
        """Take the answer to a call."""
        try:
            answer = ray.get(call)
        except RayTaskError as error:
            answer = {**NOWHERE, "status": 2, "state": f"{OVER[2]}\n{error.cause}"}
        except RayError as error:  # Ray starts it again, unless somebody has killed it: then another one is made.
            self._states.pop(name, None)
            if isinstance(error, ActorDiedError):
                self._leaving.setdefault(name, time.monotonic())
            return
        if name not in self._leaving:
            self._states[name] = answer
            if name == HOME:
                self._invitation = answer.pop("invitation", "")
                self._where = f"on {answer['node']}: {answer['at']}"
                self._end = self._end or (answer["state"] if answer["status"] in OVER else "")

    def _dismiss(self, name: str, actor: Any) -> None:
        """Have an actor's command leave, and then free it; at once where nothing has started, or its node is lost and
        there is no other, and of one that does not answer once it is late."""
        has_place = _has_place(name.partition(".")[0])
        if name in self._states and name not in self._leaving and has_place:
            self._leaving[name] = time.monotonic() + self._plan.grace + LATE_SECONDS
            self._calls[name] = actor.leave.remote()
        elif not (name in self._states and name in self._calls and has_place) or self._is_late(name):
            ray.kill(actor)
            for notes in (self._actors, self._calls, self._states):
                notes.pop(name, None)
            self._leaving.pop(name, None)
            if (group := name.partition(".")[0]) not in {each.partition(".")[0] for each in self._actors}:
                with suppress(ValueError):
                    remove_placement_group(get_placement_group(group))

    def _is_late(self, name: str) -> bool:
        return time.monotonic() > self._leaving.get(name, math.inf)


def _has_place(group: str) -> bool:
    """Whether the nodes of a group are there: not where one is lost, and there is no other."""
    with suppress(ValueError):
        return bool(placement_group_table(get_placement_group(group))["state"] == "CREATED")
    return False


def machine_of(plan: Any, *, is_home: bool) -> tuple[dict[str, float], Any]:
    """What a machine needs of its node, and the class of its actor; ValueError or TypeError by wrong options."""
    options = dict(plan.options)
    needs = {**(plan.home_needs if is_home else plan.island_needs), **options.pop("resources", {})}
    own = {option: needs[name] for name, option in OPTIONS.items() if name in needs}
    others = {name: amount for name, amount in needs.items() if name not in OPTIONS}
    return needs, ray.remote(max_restarts=-1, resources=others, **own, **options)(MachineActor)


def check(plan: Any) -> None:
    """SystemExit if there are no nodes with what machines need, free or not."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, count in ((HOME, 1), ("each island", plan.nodes)):
        needs, _ = machine_of(plan, is_home=name == HOME)
        fitting = sum(all(node.get(need, 0) >= needs[need] for need in needs) for node in nodes)
        if fitting < count:
            sys.exit(f"{name}: {count} node{'s'[: count - 1]} with {needs}; {fitting} of {len(nodes)} have that")


def main(plan: Any, file: str, words: Sequence[str]) -> None:
    """Carry out what was typed behind the printed `file`: nothing, to launch; `scale N`, `status`, or `down`."""
    has_files = not plan.files or "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ  # A job has its folder already.
    env = None if has_files else {"working_dir": str(Path(file).absolute().parent)}
    ray.init("auto", namespace=f"isthmus-{plan.run}", runtime_env=env, log_to_driver=False, logging_level=logging.ERROR)
    new = ray.remote(Controller).options(name=NAME, lifetime="detached", max_restarts=-1, max_concurrency=4, num_cpus=0)
    controller = ray.get_actor(NAME) if NAME in ray.util.list_named_actors() else None
    if words == ["down"]:
        plan.islands = 0
        if controller is None:  # One that is made now finds what another one has left, or nothing.
            controller = new.remote(plan)
        print(json.dumps({**_down(controller), "end": _end_of(plan)}))
    elif words == ["status"]:
        print(json.dumps(ray.get(controller.status.remote()) if controller else {**NOTHING, "end": _end_of(plan)}))
    elif words and controller:
        ray.get(controller.want.remote(int(words[-1])))
    elif words:
        sys.exit(f"{plan.run} is over, or was not launched here")
    else:
        check(plan)
        new.remote(plan)


def _down(controller: Any) -> dict[str, Any]:
    """Have a controller free everything, and wait until it has gone; returns what there was, as far as it says.

    It is asked again and again, because one whose node is lost is started again, and knows nothing of a wish.
    """
    before = NOTHING
    while True:
        with suppress(RayError):  # It has gone, or is away.
            if before == NOTHING:
                before = ray.get(controller.status.remote(), timeout=ANSWER_SECONDS)
            ray.get(controller.want.remote(0), timeout=ANSWER_SECONDS)
        time.sleep(TURN_SECONDS)
        if NAME not in ray.util.list_named_actors():
            return before


def _end_of(plan: Any) -> str:
    """How the run ended, and where it is; empty where it has not begun."""
    return (_internal_kv_get(plan.run, namespace=NAME) or b"").decode()
