"""A machine's daemon as a test sees it: a real process on a free port, in a folder where everything it starts works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import zmq

from isthmus.runtime.system.processes import started_at
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import FOREVER, ISTHMUS, TASK

PIPE = subprocess.PIPE


class Place:
    """A folder with a task, a state folder of its own, and the commands and daemons that were started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONUNBUFFERED": "1"}
        self.started: list[subprocess.Popen[str]] = []
        (folder / "paced.py").write_text(TASK)
        (folder / "machine.toml").write_text('[programs]\nmodules = ["paced.py"]\n')

    def begin(self, *arguments: str, stdout: Any = PIPE, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start a command."""
        command = subprocess.Popen(
            [*prefix, str(ISTHMUS), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=stdout,
            stderr=PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(command)
        return command

    def call(
        self, *arguments: str, seconds_max: float = PATIENCE, prefix: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Carry a command out."""
        command = self.begin(*arguments, prefix=prefix)
        out, error = command.communicate(timeout=seconds_max)
        assert "Traceback" not in error
        return subprocess.CompletedProcess(command.args, command.returncode, out, error)

    def training(self, run: str, *more: str, tokens: int = FOREVER) -> tuple[str, ...]:
        """The arguments of a small run."""
        return "train", "--task", "paced.py:task", "--tokens", str(tokens), "--run-dir", run, *more

    def processes(self) -> dict[int, str]:
        """pid -> name of everything that works in the folder."""
        found = {}
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdigit() and (path / "cwd").readlink() == self.folder:
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return {pid: name for pid, name in found.items() if started_at(pid) is not None}

    def without_porters(self) -> dict[int, str]:
        """The same without porters, of which each daemon has one."""
        return {pid: name for pid, name in self.processes().items() if "porter" not in name}

    def hosts(self) -> dict[int, str]:
        """The same without daemons and commands."""
        words = ("isthmus learner", "isthmus syncer", "isthmus evaluator", "isthmus recorder")
        return {pid: name for pid, name in self.processes().items() if name.startswith(words)}

    def wait_for(self, what: Callable[[], Any], seconds_max: float = PATIENCE) -> Any:
        """The first true result of `what`."""
        pause, until = threading.Event(), time.monotonic() + seconds_max
        while not (found := what()):
            assert time.monotonic() < until, f"it did not come about: {self.processes()}, {self.logs()}"
            pause.wait(0.05)
        return found

    def wait_for_merges(self, run: str, count: int = 5) -> None:
        """Wait until so many merges of a run are written down."""
        path = self.folder / run / "merges.jsonl"
        self.wait_for(lambda: path.exists() and path.read_text().count("\n") >= count)

    def summary(self, run: str) -> dict[str, Any]:
        """The figures of a run that is over."""
        found: dict[str, Any] = json.loads((self.folder / run / "summary.json").read_text())
        return found

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"{path}: {path.read_text()[-600:]}" for path in sorted(self.folder.rglob("*.log")))

    def close(self) -> None:
        """End whatever works in the folder."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for command in self.started:
            command.communicate()


class MachineDaemon:
    """`isthmus daemon`, once it listens, with its lines in a file and a cluster file that names it."""

    def __init__(self, place: Place, name: str = "alpha", address: str = "tcp://127.0.0.1:0", *more: str) -> None:
        self.place, self.name = place, name
        self.path = place.folder / f"{name}-{len(place.started)}.log"
        with self.path.open("w") as log:
            self.process = place.begin(
                "daemon", "--name", name, "--listen", address, "--config", "machine.toml", *more, stdout=log
            )
        line = place.wait_for(lambda: next((line for line in self.lines() if "listens at" in line), ""))
        self.address = line.partition("listens at ")[2].partition(",")[0]
        self.cluster = cluster_file(place, name, self.address)

    def lines(self) -> list[str]:
        """What it has told so far."""
        return self.path.read_text().splitlines()

    def wait_for_line(self, words: str, seconds_max: float = PATIENCE) -> str:
        """The first line with these words."""
        found: str = self.place.wait_for(lambda: next((x for x in self.lines() if words in x), ""), seconds_max)
        return found

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal, and wait for the end; the exit status."""
        self.process.send_signal(number)
        _, error = self.process.communicate(timeout=PATIENCE)
        assert "Traceback" not in error
        return self.process.returncode


def cluster_file(place: Place, name: str, address: str) -> str:
    """The name of a cluster file with one machine and one learner."""
    path = place.folder / f"cluster-{name}.toml"
    path.write_text(f'[[machine]]\nname = "{name}"\naddress = "{address}"\n[run]\nlearners = 1\n')
    return path.name


def tell(address: str, message: dict[str, Any]) -> dict[str, Any]:
    """Send a daemon a message as it stands, and wait for its answer."""
    context = zmq.Context()
    try:
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(address)
            socket.send(msgpack.packb(message))
            assert socket.poll(20_000)
            answer: dict[str, Any] = msgpack.unpackb(socket.recv())
            return answer
    finally:
        context.term()


@contextmanager
def fake_daemon(**answer: Any) -> Iterator[str]:
    """Somebody who answers the same map, or these bytes as `raw`, to every message; the result is its address."""
    data = answer.pop("raw") if "raw" in answer else msgpack.packb(answer)
    context = zmq.Context()
    socket, is_over = context.socket(zmq.ROUTER), threading.Event()
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        while not is_over.is_set():
            if socket.poll(50):
                peer, *_ = socket.recv_multipart()
                socket.send_multipart([peer, data])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{port}"
    finally:
        is_over.set()
        thread.join()
        socket.close(0)
        context.term()
