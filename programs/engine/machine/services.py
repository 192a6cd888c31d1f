"""The services of a machine's daemon: what it answers, and keeps, beside the runs that it has.

A daemon knows a service by its line in `SERVICES`: the messages that it answers, and who may send them. Its code is
loaded with the first of these messages. Services that a daemon is started with, as its command asks (`serve`), are in
no table. A service is told of its daemon once, when it is made (`Machine`), and nothing is put into either later.

No service may be named in the daemon, and none may know another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Protocol, final

from isthmus.programs.engine.cluster.handover import RunRoot, Sites
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine.links import HomeAddress, MachineLinks
from isthmus.programs.engine.request.spec import Spec
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_keys import Keyring

Handler = Callable[[Message], "Message | Awaitable[Message]"]
"""Answers a message; ConfigError, or one of `links.MALFORMED`, for one that cannot be fulfilled."""
HomeHandler = Callable[[HomeAddress, Message], Awaitable[Message]]
"""Answers a message of a home that this machine is linked to."""


class RunPart(Protocol):
    """What a next home asks of the parts that its machine has in other homes' runs (`outposts.Outposts`)."""

    def standing(self, run: str, name: str) -> Any: ...
    def release(self, run: str) -> Path | None: ...
    def adopt(self, folder: Path) -> None: ...


class Machine(Protocol):
    """The daemon of a service."""

    name: str
    loop: asyncio.AbstractEventLoop
    keys: Keyring | None
    config: MachineConfig
    root: RunRoot

    @property
    def endpoint(self) -> str:
        """Where others reach it."""

    @property
    def links(self) -> MachineLinks:
        """Its links to machines that have dialled it."""

    @property
    def outposts(self) -> RunPart:
        """Its parts in other homes' runs."""

    def caller(self) -> str | None:
        """The machine whose message is handled now, by its key; None without keys."""

    def run_names(self) -> Collection[str]:
        """The names of the runs that have their home here."""

    def permit(self, program: str, task: str, run: str) -> None:
        """ConfigError for a program, task and run that are not permitted here."""

    def hold_next(self, folder: Path, run_spec: Spec, sites: Sites) -> None:
        """Be the home of a run from now on that had another one; one of `run.UNABLE` if that cannot be."""


class Service:
    """A service of one daemon. What it has no use for, it inherits."""

    messages: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The messages that it answers, and their handlers: names of its methods."""
    home_messages: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Likewise those of homes that its machine is linked to."""

    def listening(self) -> Iterable[str]:
        """The endpoints at which it listens, for a porter."""
        return ()

    def close(self) -> None:
        """Free what it has."""


class ServiceLine(NamedTuple):
    """A service that is loaded when it is asked: its class, as module and name; each of its messages, with its meaning
    in words where an operator alone may send it, else none; and the messages of homes."""

    made_by: str
    messages: Mapping[str, str]
    home_messages: tuple[str, ...] = ()


SERVICES: Final = (
    ServiceLine(
        "isthmus.programs.engine.machine.next_home:NextHome",
        {"resume": "to be the home of a run", "restore": "to be the home of a run from its store"},
    ),
    ServiceLine(
        "isthmus.programs.engine.machine.trial_ports:TrialPorts", {"open-port": "", "dial-port": "to dial a port"}
    ),
    ServiceLine(
        "isthmus.programs.engine.machine.link_trials:LinkTrials",
        {"open-link-trial": "", "measure-link": "to measure a link"},
        ("measure-link",),
    ),
)
OPERATORS: Final[Mapping[str, str]] = {
    kind: words for line in SERVICES for kind, words in line.messages.items() if words
}
"""Messages to services that need an operator's key, with their meaning in words."""


@final
class Services:
    """The services of the daemon `machine`: those that it was asked with so far."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._made: dict[str, Service] = {}

    def handler(self, kind: str) -> Handler | None:
        """What answers a message; None where no service does."""
        line = next((line for line in SERVICES if kind in line.messages), None)
        if line is None:
            return None
        service = self._service(line)
        found: Handler = getattr(service, service.messages[kind])
        return found

    def home_handler(self, kind: str) -> HomeHandler | None:
        """What answers a message of a home; None where no service does."""
        line = next((line for line in SERVICES if kind in line.home_messages), None)
        if line is None:
            return None
        service = self._service(line)
        found: HomeHandler = getattr(service, service.home_messages[kind])
        return found

    def listening(self) -> Iterator[str]:
        """The endpoints at which services listen here."""
        for each in self._made.values():
            yield from each.listening()

    def close(self) -> None:
        """Close all."""
        for each in self._made.values():
            each.close()

    def _service(self, line: ServiceLine) -> Service:
        if line.made_by not in self._made:
            module, _, name = line.made_by.partition(":")
            self._made[line.made_by] = getattr(import_module(module), name)(self._machine)
        return self._made[line.made_by]
