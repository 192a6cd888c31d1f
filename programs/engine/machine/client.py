"""A command's messages to the daemon that is the home of runs: find it, hand a run over, watch it, find its runs again.

While it watches, every question renews the run's lease; a command that is gone does not ask, and the daemon ends the
run. A daemon that is gone for a while is waited for, because the next one of its name adopts the run. The run folder
may be on another machine than the command: answers contain everything that the command needs.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.handover import Handover, MachineSite, RunRoot
from isthmus.programs.engine.machine.names import living
from isthmus.programs.engine.request import new_folder, spec
from isthmus.programs.engine.run.in_processes import Submitted
from isthmus.programs.engine.run.interrupts import Interrupts, interrupts
from isthmus.programs.engine.run.watch_loop import RunOutcome, RunWatch, Watch, ended
from isthmus.runtime.errors import ConfigError, Fault, PlacementError, RunError
from isthmus.runtime.graph.placement import Machine, home_of
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_keys import Keyring, is_loopback, read_pair

ANSWER_SECONDS: Final = 5.0
LONG_SECONDS: Final = {"measure-link": 20.0, "check": 90.0, "resume": 90.0, "restore": 600.0}
"""Time limits for answers that need other machines, which may have data to read, or a snapshot fetched."""
SILENCE_SECONDS_MAX: Final = 60.0
"""Hosts without a daemon end after this time, so that a longer wait is pointless."""


@final
@dataclass(frozen=True, slots=True)
class DaemonClient:
    """The daemon of a machine, as a command reaches it."""

    name: str
    address: str
    keys: Keyring | None = None
    server_key: str = ""

    @classmethod
    def of(cls, cluster: Cluster) -> DaemonClient:
        """The home of the runs of a cluster; PlacementError if no machine can be."""
        return cls.at(cluster, home_of(cluster.topology))

    @classmethod
    def next_of(cls, cluster: Cluster, name: str | None) -> DaemonClient:
        """The machine `name` of a cluster, or without a name the first that can be a home and whose daemon listens.

        ConfigError if there is none.
        """
        able = [machine for machine in cluster.machines if machine.address is not None]
        if name is not None:
            chosen = next((machine for machine in able if machine.name == name), None)
            if chosen is None:
                names = ", ".join(machine.name for machine in able) or "none"
                do = "Choose one of these, or give it an address there."
                raise ConfigError("Reading --home", f"a machine of {cluster.file} with an address", names, do)
            return cls.at(cluster, chosen)
        there = tuple(machine for machine in able if cluster_file.is_listening(str(machine.address)))
        return cls.at(cluster, home_of(replace(cluster, machines=there).topology))

    @classmethod
    def at(cls, cluster: Cluster, home: Machine | None) -> DaemonClient:
        """The daemon of one machine of a cluster; PlacementError for none."""
        if home is None:
            do = 'Give the machine that is to be the home of runs an address = "tcp://HOST:PORT".'
            raise PlacementError(f"Using {cluster.file}", "a machine with an address", "none", do)
        keys = None if cluster.secret is None else Keyring(read_pair(cluster.secret))
        return cls(home.name, home.endpoint, keys, home.public_key or "")

    @classmethod
    def here(cls, name: str) -> DaemonClient | None:
        """The daemon of this name on this machine, if it listens on loopback and so needs no keys."""
        entry = living().get(name)
        return cls(name, entry.note.endpoint) if entry is not None and is_loopback(entry.note.endpoint) else None

    def find(self, message: Message | None = None) -> dict[str, Any]:
        """Its answer, by default its description of itself.

        ConfigError for a refusal, or if nothing listens there, or another daemon.
        """
        doing = f"Calling the daemon {self.name!r} at {self.address}"
        start = f"isthmus daemon --name {self.name} --listen {self.address}"
        if not cluster_file.is_listening(self.address):
            raise ConfigError(doing, "a daemon that listens there", "nobody", f"Start it: {start}")
        answer = _permitted(self.ask(message or {"type": "machine"}, ANSWER_SECONDS))
        if answer is None or answer["type"] != "machine":
            actual = f"no answer within {ANSWER_SECONDS:.0f} s" if answer is None else "a daemon of a single run"
            do = f"Look at what listens there, or start it: {start}"
            raise ConfigError(doing, "the daemon of a machine", actual, do)
        if answer["name"] != self.name:
            do = f"Write name = {answer['name']!r} in the cluster file, or the address of {self.name!r}."
            raise ConfigError(doing, f"the name {self.name!r}", f"{answer['name']!r}", do)
        return answer

    def ask(self, message: Message, seconds_max: float) -> Message | None:
        """The daemon's answer; None if none arrives in time."""
        return ask(self.address, message, seconds_max, keys=self.keys, server_key=self.server_key)

    def say(self, message: Message) -> Message:
        """The daemon's answer; ConfigError for a refusal, or if none arrives in time."""
        seconds_max = patience(str(message["type"]))
        answer = _permitted(self.ask(message, seconds_max))
        if answer is None:
            doing, expected = f"Asking the daemon {self.name!r} at {self.address}", "an answer"
            do = "`isthmus status --all` shows whether it is still there, and its runs."
            raise ConfigError(doing, expected, f"none within {seconds_max:.0f} s", do)
        return answer


def patience(kind: str) -> float:
    """Seconds that a command waits for the answer to a message of that type."""
    return LONG_SECONDS.get(kind, ANSWER_SECONDS)


def _permitted(answer: Message | None) -> Message | None:
    """An answer, if there is one; ConfigError for a refusal."""
    if answer is not None and answer["type"] == "refused":
        raise ConfigError.of([Fault(*fault) for fault in answer["faults"]])
    return answer


def folder_there(daemon: DaemonClient, root: str, run_dir: Path | None) -> str:
    """The run folder that --run-dir names for a daemon with run root `root`; empty without --run-dir.

    A relative path begins at the root; ConfigError for an absolute one outside it.
    """
    if run_dir is None:
        return ""
    path = Path(os.path.expanduser(run_dir))
    path = Path(os.path.normpath(path if path.is_absolute() else Path(root) / path))
    return RunRoot(Path(root)).name_of(path, f"Choosing the run folder on the machine {daemon.name!r}")


def hand_over(daemon: DaemonClient, handed: Handover, *, is_watched: bool) -> Submitted:
    """Have a daemon make the run folder and start the run; returns the folder there. ConfigError if it refuses.

    If the folder turns out to be on this machine, runs/latest points to it.
    """
    answer = daemon.say({"type": "take", "handover": handed.as_data(), "is_watched": is_watched})
    folder = Path(str(answer["run"]))
    if (folder / new_folder.CONFIG).exists():
        new_folder.point_latest_to(folder)
    return Submitted(handed.name, spec.read(handed.spec).job, folder)


def resume_there(daemon: DaemonClient, cluster: Cluster, run: str, run_dir: Path | None) -> Message:
    """Make the machine of a daemon the home of a run; returns the daemon's answer.

    `run` is a folder there, or a URL of snapshots, which go into a new folder there (`run_dir`, if given). ConfigError
    if it is refused, for example because a machine with an address has the run.
    """
    is_store = "://" in run
    if run_dir is not None and not is_store:
        do = "Leave it out: the run goes on in its folder."
        raise ConfigError("Reading --run-dir", "a URL as RUN beside it", f"the folder {run}", do)
    others = [machine for machine in cluster.machines if machine.address is not None and machine.name != daemon.name]
    going_on: dict[str, list[str]] = {}
    for machine in others:
        if cluster_file.is_listening(str(machine.address)):
            there = DaemonClient(machine.name, str(machine.address), daemon.keys, machine.public_key or "")
            going_on[machine.name] = [str(each["name"]) for each in there.find()["runs"]]
    name = folder_there(daemon, daemon.find()["root"], run_dir if is_store else Path(run))
    sites = [asdict(MachineSite.of(machine, cluster.topology.region_of(machine))) for machine in cluster.machines]
    message = {"type": "restore", "url": run} if is_store else {"type": "resume"}
    return daemon.say({**message, "run": name, "sites": sites, "going_on": going_on})


def hand_over_detached(daemon: DaemonClient, handed: Handover) -> Submitted:
    """Like `hand_over`, for a run without a watching command; a Ctrl-C meanwhile ends the run again."""
    with interrupts() as interrupted:
        submitted = hand_over(daemon, handed, is_watched=False)
        if interrupted.count:
            reason = "ended by Ctrl-C at its start"
            daemon.say({"type": "end", "run": str(submitted.run_dir), "reason": reason})
    if interrupted.count:
        raise KeyboardInterrupt
    return submitted


def watch_on_machine(
    daemon: DaemonClient, submitted: Submitted, watch: Watch | None, interrupted: Interrupts
) -> RunOutcome:
    """Watch a run that was handed over; RunError if the run failed, or if Ctrl-C came twice."""
    machine = _MachineWatch(daemon, str(submitted.run_dir))
    RunWatch(machine, interrupted).until_over(submitted.run_dir, watch)
    return ended(submitted.run_dir, machine.summary, watch)


@final
class _MachineWatch:
    """The run in the folder `run` of a machine's daemon, as its command watches it: each question renews its lease."""

    fate: Final = "if it is gone, the run's processes end by themselves within a minute"

    def __init__(self, daemon: DaemonClient, run: str) -> None:
        self._daemon, self._run = daemon, run
        self._heard_at = time.monotonic()
        self.is_over = False
        self.summary: dict[str, Any] | None = None

    def tend(self) -> None:
        """RunError after SILENCE_SECONDS_MAX without an answer."""
        silence = time.monotonic() - self._heard_at
        if silence > SILENCE_SECONDS_MAX:
            at = f"the daemon {self._daemon.name!r} at {self._daemon.address}"
            raise RunError(f"{at} has not answered for {silence:.0f} s; {self.fate}")

    def status(self) -> Message | None:
        answer = self._ask({"type": "watch"})
        if answer is not None and answer["type"] == "refused":
            raise RunError(str(Fault(*answer["faults"][0])))
        if answer is not None and answer["type"] == "over":
            self.is_over, self.summary = True, answer["summary"]
            return None
        return answer

    def confirms(self, message: Message) -> bool:
        return self._ask(message) is not None

    def detach(self) -> bool:
        return False

    def _ask(self, message: Message) -> Message | None:
        answer = self._daemon.ask({**message, "run": self._run}, 1.0)
        if answer is not None:
            self._heard_at = time.monotonic()
        return answer


def newest_run(daemon: DaemonClient) -> Path:
    """The run folder of the one run in progress there, or else of the newest that is over; ConfigError if that is no
    answer."""
    answer = daemon.find()
    running = [Path(run["run"]) for run in answer["runs"]]
    doing = f"Looking for the run of the daemon {daemon.name!r}"
    if len(running) > 1:
        do = "Name its folder in place of --cluster."
        raise ConfigError(doing, "one run that goes on", ", ".join(map(str, running)), do)
    if not running and not answer["former"]:
        raise ConfigError(doing, "a run", "none so far", "Start one: isthmus train --cluster FILE.")
    return running[0] if running else Path(answer["former"][-1]["run"])
