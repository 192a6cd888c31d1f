"""The services of a machine's daemon: what it answers, and keeps, beside the runs that it has.

A daemon knows a service by its row in `SERVICES`: the messages that it answers, and who may send them. Its code is
loaded with the first of these messages. Services that a daemon is started with, as its command asks (`serve`), are in
no table. A service is told of its daemon once, when it is started (`ServedMachine`), and nothing is put into either
later.

How services are found, asked and closed is here, whole; no service may be named in the daemon, and none may know
another one.
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
from isthmus.programs.engine.machine.client import ASK_SCRIPT
from isthmus.programs.engine.machine.links import HomeHandler
from isthmus.programs.engine.machine.names import DaemonRun
from isthmus.programs.engine.machine.neighbours import Neighbours
from isthmus.programs.engine.machine.outposts import Guest
from isthmus.programs.engine.request.spec import Spec
from isthmus.programs.wing_table import WINGS
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_keys import Keyring

Handler = Callable[[Message], "Message | Awaitable[Message]"]
"""Answers a message; ConfigError, or one of `links.MALFORMED`, for one that cannot be fulfilled."""


class ServedMachine(Protocol):
    """The daemon that a service serves."""

    name: str
    loop: asyncio.AbstractEventLoop
    keys: Keyring | None
    config: MachineConfig
    root: RunRoot
    neighbours: Neighbours
    endpoint: str
    """Where others reach it."""

    @property
    def fault(self) -> ConfigError | None:
        """Why it ends, if it cannot do what it was started for."""

    @property
    def folders(self) -> list[str]:
        """The folders of the runs that have their home here and are not over."""

    def tell(self, line: str) -> None:
        """Tell people a line."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call on its loop, after so many seconds."""

    def fail(self, fault: ConfigError) -> None:
        """End, because it cannot do what it was started for."""

    def request_end(self) -> None:
        """Leave all runs, and end."""

    def caller(self) -> str | None:
        """The machine whose message is handled now, by its key; None without keys."""

    def run_names(self) -> Collection[str]:
        """The names of the runs that have their home here."""

    def statuses(self) -> list[dict[str, Any]]:
        """The status of each run that has its home here, and of its part in each of others."""

    def permit(self, program: str, task: str, run: str, *, computes: bool = True) -> None:
        """ConfigError for a program, task and run that are not permitted here; `computes`: hosts here may load them."""

    def hold_next(self, folder: Path, run_spec: Spec, sites: Sites) -> None:
        """Be the home of a run from now on that had another one; one of `run.UNABLE` if that cannot be."""

    def adopt(self, run: DaemonRun) -> None:
        """Go on with a run that was this home's."""

    def know(self, folder: str, outcome: str) -> None:
        """Know a run that was over before."""


class DaemonService:
    """A service of one daemon: made, started once with its daemon, and closed. What it has no use for, it inherits."""

    messages: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The messages that it answers, and their handlers: names of its methods."""
    home_messages: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Likewise those of homes that its machine is linked to."""

    def __init_subclass__(cls) -> None:
        for method in (*cls.messages.values(), *cls.home_messages.values()):
            assert callable(getattr(cls, method, None)), f"{cls.__name__} has no handler {method!r}"

    def start(self, machine: ServedMachine) -> None:
        """Serve this daemon from now on."""

    def listening(self) -> Iterable[str]:
        """The endpoints at which it listens, for a porter."""
        return ()

    def claim(self, invitation: str, message: Message, away_seconds: float) -> Message | None:
        """The answer to the holder of an invitation, whose machine was away for so long; None: it is another's."""
        return None

    def loop_linked(self, name: str) -> None:
        """The daemon of a loop that starts itself has announced itself, once more."""

    def expelled(self) -> None:
        """A home has expelled this machine from its runs."""

    def guest(self) -> Guest | None:
        """The process of a user's loop that is the only host here, if it brings one."""
        return None

    def close(self) -> None:
        """Free what it has."""


class ServiceRow(NamedTuple):
    """A service that is loaded when it is asked: its class, as module and name; each of its messages, with its meaning
    in words where an operator alone may send it, else none; and the messages of homes."""

    made_by: str
    messages: Mapping[str, str]
    home_messages: tuple[str, ...] = ()


_OWN: Final = ServiceRow(
    "isthmus.programs.engine.machine.asked_scripts:AskedScripts", {ASK_SCRIPT: "to start a script"}, (ASK_SCRIPT,)
)
SERVICES: Final = (
    _OWN,
    *(
        ServiceRow(wing.reference(each.made_by), each.messages, each.home_messages)
        for wing in WINGS
        for each in wing.services
    ),
)
OPERATORS: Final[Mapping[str, str]] = {kind: words for row in SERVICES for kind, words in row.messages.items() if words}
"""Messages to services that need an operator's key, with their meaning in words."""


@final
class Services:
    """The services of the daemon `machine`: those that it was `started` with, and those that were asked for so far."""

    def __init__(self, machine: ServedMachine, started: Iterable[DaemonService]) -> None:
        self._machine, self._started = machine, tuple(started)
        self._asked: dict[str, DaemonService] = {}

    def guest(self) -> Guest | None:
        """The guest of the daemon, if it has one."""
        return next((guest for each in self._started if (guest := each.guest()) is not None), None)

    def start(self) -> None:
        """Start those that the daemon was started with."""
        for each in self._started:
            each.start(self._machine)

    @property
    def kinds(self) -> set[str]:
        """The messages that services answer, loaded or not."""
        return {kind for row in SERVICES for kind in row.messages}

    def handler(self, kind: str) -> Handler | None:
        """What answers a message; None where no service does."""
        service = self._service(lambda row: kind in row.messages)
        return None if service is None else getattr(service, service.messages[kind])

    def home_handler(self, kind: str) -> HomeHandler | None:
        """What answers a message of a home; None where no service does."""
        service = self._service(lambda row: kind in row.home_messages)
        return None if service is None else getattr(service, service.home_messages[kind])

    def claim(self, invitation: str, message: Message, away_seconds: float) -> Message | None:
        """The answer to the holder of an invitation; None where no service has one."""
        answers = (each.claim(invitation, message, away_seconds) for each in self._started)
        return next((answer for answer in answers if answer is not None), None)

    def loop_linked(self, name: str) -> None:
        """Tell all of a loop's daemon."""
        for each in self._started:
            each.loop_linked(name)

    def expelled(self) -> None:
        """Tell all that a home has expelled this machine."""
        for each in self._started:
            each.expelled()

    def listening(self) -> Iterator[str]:
        """The endpoints at which services listen here."""
        for each in (*self._started, *self._asked.values()):
            yield from each.listening()

    def close(self) -> None:
        """Close all."""
        for each in (*self._asked.values(), *reversed(self._started)):
            each.close()

    def _service(self, has: Callable[[ServiceRow], bool]) -> DaemonService | None:
        """The service whose row that holds of, which is loaded if it was not yet; None where there is none."""
        for row in filter(has, SERVICES):
            if row.made_by not in self._asked:
                module, _, name = row.made_by.partition(":")
                service: DaemonService = getattr(import_module(module), name)()
                # A class asserts that its messages have handlers, this that they are those of its row: one of the row
                # alone would have no handler, and one of the class alone would never be asked, or by anyone.
                assert service.messages.keys() == row.messages.keys(), row
                assert service.home_messages.keys() == set(row.home_messages), row
                self._asked[row.made_by] = service
                service.start(self._machine)
            return self._asked[row.made_by]
        return None
