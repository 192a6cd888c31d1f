"""This machine's own link to another, where runs have their home: it dials, announces itself, and receives orders.

One link serves all runs of that home. It is kept for as long as a run needs it; while the other end is away it dials
again and again, which costs a packet now and then.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

from isthmus.programs.machine.links import EXPELLED, LINK, LINK_SECONDS, REQUEST, RESPONSE, UP_SECONDS, refusal
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.wire.control_client import ControlClient
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.security_curve import UNADMITTED, WORDS
from isthmus.runtime.wire.security_keys import Keyring

INSTANCE: Final = secrets.token_hex(8)
"""Distinguishes this process from any other of the same name."""
REDIAL_BEATS: Final = 6
"""After three seconds of silence the connection is made anew: one that a cut has left half open may need minutes to
fail."""


@final
@dataclass(frozen=True, slots=True)
class Home:
    """Another machine and its daemon's address; `public_key` is empty without keys."""

    name: str
    address: str
    public_key: str = ""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@final
class Link:
    """The link to `home`.

    `describe` gives this machine's announcement; `orders` receives every message but requests; `answer` is awaited for
    the answer to a request.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        home: Home,
        keys: Keyring | None,
        *,
        describe: Callable[[], Message],
        orders: Callable[[Link, Message], None],
        answer: Callable[[Home, Message], Any],
    ) -> None:
        """Dial; ConfigError if the address leaves the machine and there are no keys."""
        self.home = home
        self.refused = ""
        self.faults: list[Fault] = []
        self._refused_since = 0.0
        self._loop, self._describe, self._orders, self._answer = loop, describe, orders, answer
        self._heard_at = float("-inf")
        self._silent_beats = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._client = ControlClient(
            loop, home.address, self._hear, keys=keys, server_key=home.public_key, on_refused=self._note_refusal
        )
        self._beat()

    @property
    def is_up(self) -> bool:
        """Whether a message arrived within the last UP_SECONDS."""
        return time.monotonic() - self._heard_at < UP_SECONDS

    def send(self, message: Message) -> None:
        """Send a message to the home; dropped while the link is down."""
        self._client.send(message)

    def name_home(self, name: str) -> None:
        """Note the name of the home, which has accepted this machine."""
        self.home, self.refused, self.faults = replace(self.home, name=name), "", []

    def refuse(self, faults: list[Fault]) -> None:
        """Note the home's reasons for refusing this machine."""
        if not self.faults:
            self._refused_since = time.monotonic()
        self.refused, self.faults = faults[0].found, faults

    @property
    def is_hopeless(self) -> bool:
        """Whether it was refused for so long that the cause cannot be a process that has just died."""
        return bool(self.faults) and time.monotonic() - self._refused_since > 2 * UP_SECONDS

    def close(self) -> None:
        """Hang up."""
        self._is_closed = True
        self._client.close()

    def _note_refusal(self, reason: str) -> None:
        self.refused = WORDS[reason]
        if reason == UNADMITTED and self._heard_at > 0:
            self._orders(self, {"type": EXPELLED})

    def _beat(self) -> None:
        if self._is_closed:
            return
        self._silent_beats += 1
        if self._silent_beats % REDIAL_BEATS == 0:
            self._client.dial(self.home.address)
        self._client.send({"type": LINK, "instance": INSTANCE, **self._describe()})
        self._loop.call_later(LINK_SECONDS, self._beat)

    def _hear(self, message: Message) -> None:
        self._heard_at, self._silent_beats = time.monotonic(), 0
        if message["type"] == REQUEST:
            task = self._loop.create_task(self._respond(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._orders(self, message)

    async def _respond(self, message: Message) -> None:
        try:
            answer = await self._answer(self.home, dict(message["message"]))
        except ConfigError as error:
            answer = refusal(error)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
            found = f"{type(error).__name__}: {error}"
            do = "Use one version everywhere."
            answer = refusal(ConfigError("Answering a request", "one that can be acted on", found, do))
        if not self._is_closed:
            self._client.send({"type": RESPONSE, "number": message.get("number"), "message": answer})
