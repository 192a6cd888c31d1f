"""The daemon of a machine as others ask it: commands, and the daemons of other machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, final

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.placement import Machine, home_of
from isthmus.programs.engine.machine.names import living
from isthmus.programs.wing_table import answer_seconds
from isthmus.runtime.errors import ConfigError, Fault, PlacementError
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_keys import Keyring, is_loopback, read_pair

ANSWER_SECONDS: Final = 5.0
ASK_SCRIPT: Final = "ask-script"
"""The question for the model of a script, which a machine of its run starts."""
GO_ON: Final = "go-on"
"""The request to go on with a run whose folder is ready for it."""
LONG_SECONDS: Final = {"check": 90.0, ASK_SCRIPT: 90.0, **answer_seconds()}
"""Time limits for answers that need other machines, which may have data to read, or a snapshot fetched."""


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
