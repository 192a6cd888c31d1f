"""The links that other machines have to this one: which machines are linked, and the messages to them.

A machine links itself: it dials, and announces itself twice a second. Nothing is dialled from here, so that it may sit
behind NAT. A message to a machine that is not linked is lost; its sender repeats it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, final

from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.wire.control_messages import Message

MALFORMED: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, OSError)
"""Errors that reading a message may raise, whatever it contains."""
LINK: Final = "link"
EXPELLED: Final = "expelled"
REQUEST: Final = "request"
RESPONSE: Final = "response"
LINK_SECONDS: Final = 0.5
"""Interval of a machine's announcements."""
UP_SECONDS: Final = 2.0
"""A machine counts as linked for so long after its last announcement."""
LOOK_SECONDS: Final = 0.05
INSTANCE_LENGTH_MAX: Final = 64
"""Characters of a machine's name, and of the identifier of its daemon's process."""


@dataclass(slots=True)
class _Linked:
    """A machine's link: its peer, its daemon's instance, the time of its last announcement."""

    peer: bytes
    instance: str
    heard_at: float


@final
class Links:
    """All links to this machine. `send` takes a message to a peer of its control server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes, Message], None]) -> None:
        self._loop, self._send = loop, send
        self._linked: dict[str, _Linked] = {}
        self._asked: dict[int, tuple[str, asyncio.Future[Message]]] = {}
        self._number = 0

    def hear(self, peer: bytes, message: Message) -> str:
        """Note a machine's announcement; returns its name. ConfigError if another of that name is linked."""
        name, instance, now = str(message["name"]), str(message["instance"]), time.monotonic()
        if len(instance) > INSTANCE_LENGTH_MAX or len(name) > INSTANCE_LENGTH_MAX:
            raise ValueError(f"a machine that calls itself {name[:INSTANCE_LENGTH_MAX]!r}")
        known = self._linked.get(name)
        if known is not None and known.instance != instance and now - known.heard_at < UP_SECONDS:
            do = "Give each machine a --name of its own, or end the other daemon."
            raise ConfigError(f"Linking the machine {name!r}", "one machine of that name", "two", do)
        self._linked[name] = _Linked(peer, instance, now)
        return name

    def name_of(self, peer: bytes) -> str | None:
        """The machine that has a peer's link."""
        return next((name for name, linked in self._linked.items() if linked.peer == peer), None)

    def is_up(self, name: str) -> bool:
        """Whether a machine announced itself within the last UP_SECONDS."""
        linked = self._linked.get(name)
        return linked is not None and time.monotonic() - linked.heard_at < UP_SECONDS

    def send(self, name: str, message: Message) -> None:
        """Send a message to a machine; dropped if it is not linked."""
        linked = self._linked.get(name)
        if linked is not None:
            self._send(linked.peer, message)

    def instance(self, name: str) -> str:
        """The instance of a machine's daemon; empty if it is not linked."""
        return self._linked[name].instance if name in self._linked else ""

    def drop(self, name: str) -> None:
        """Forget a machine until its next announcement."""
        self._linked.pop(name, None)

    async def wait_for(self, name: str, seconds_max: float) -> bool:
        """Wait at most `seconds_max` for a machine to be linked; returns whether it is."""
        until = time.monotonic() + seconds_max
        while not self.is_up(name) and time.monotonic() < until:
            await asyncio.sleep(LOOK_SECONDS)
        return self.is_up(name)

    async def request(self, name: str, message: Message, seconds_max: float) -> Message:
        """Send a request; returns the answer. ConfigError for a refusal, or if no answer arrives in time."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._asked[number] = name, answer
        self.send(name, {"type": REQUEST, "number": number, "message": message})
        try:
            async with asyncio.timeout(seconds_max):
                found = await answer
        except TimeoutError:
            doing, do = f"Asking the machine {name!r}", "Look at its daemon, and at the network between."
            raise ConfigError(doing, "an answer", f"none within {seconds_max:.0f} s", do) from None
        finally:
            del self._asked[number]
        try:
            if str(found["type"]) == "refused":
                raise ConfigError.of([Fault(*map(str, fault)) for fault in found["faults"]])
        except (LookupError, TypeError, ValueError) as error:
            doing, do = f"Asking the machine {name!r}", "Use one version everywhere."
            raise ConfigError(doing, "an answer", f"{type(error).__name__}: {error}"[:500], do) from None
        return found

    def hear_response(self, name: str, message: Message) -> None:
        """Hand a machine's answer to the request that waits for it."""
        asked, answer = self._asked.get(int(message["number"]), ("", None))
        if answer is not None and asked == name and not answer.done():
            answer.set_result(dict(message["message"]))


def refusal(error: Exception) -> dict[str, Any]:
    """The message of a refusal, from a ConfigError or one of MALFORMED."""
    if not isinstance(error, ConfigError):
        found = f"{type(error).__name__}: {error}"[:500]
        error = ConfigError("Reading a message", "one that a daemon can act on", found, "Use one version everywhere.")
    return {"type": "refused", "faults": [list(fault) for fault in error.faults]}


async def answered(work: Awaitable[Message], doing: str, seconds_max: float) -> Message:
    """The answer of `work`; a refusal if it raises, or takes longer than `seconds_max`.

    The limit lets the refusal reach the caller before its own time-out.
    """
    timeout = asyncio.timeout(seconds_max)
    try:
        async with timeout:
            return await work
    except (ConfigError, *MALFORMED) as error:
        if not timeout.expired():
            return refusal(error)
        do = "Look at the machines that take part, at the network between, and at the disk that has the data."
        return refusal(ConfigError(doing, f"all answers within {seconds_max:.0f} s", "some that did not come", do))
