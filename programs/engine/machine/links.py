"""Links between the daemons of machines, at both ends. What their messages mean does not come in (`neighbours`).

`HomeLink` is this machine's own link to another, where runs have their home: it dials, announces itself, and receives
orders. One link serves all runs of that home. It is kept for as long as a run needs it; while the other end is away it
dials again and again, which costs a packet now and then.

`MachineLinks` are those that other machines have to this one: which machines are linked, and the messages to them. A
machine links itself, and announces itself twice a second. Nothing is dialled by the home's end, so that a machine may
sit behind NAT. Messages to machines that are not linked are dropped; their senders repeat them.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

from isthmus.runtime.channels.crossings import Direction
from isthmus.runtime.errors import ConfigError, Fault, shortened
from isthmus.runtime.wire.control_client import ControlClient
from isthmus.runtime.wire.control_messages import Message, version_of
from isthmus.runtime.wire.security_curve import UNADMITTED, WORDS
from isthmus.runtime.wire.security_keys import Keyring

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
FAR_UP_SECONDS: Final = 20.0
"""The same for one that is far: its announcements come through a bucket, several at once."""
LOOK_SECONDS: Final = 0.05
INSTANCE_LENGTH_MAX: Final = 64
"""Characters of a machine's name, and of the identifier of its daemon's process."""


@dataclass(slots=True)
class _Linked:
    """A machine's link: its peer, its daemon's instance, the time of its last announcement."""

    peer: bytes
    instance: str
    heard_at: float
    is_far: bool
    islands: int
    """How many it offers to runs as they begin; 0 for a loop that has started itself, and a part of an island."""

    @property
    def is_up(self) -> bool:
        """Whether its last announcement is recent."""
        return time.monotonic() - self.heard_at < up_seconds(is_far=self.is_far)


def up_seconds(*, is_far: bool) -> float:
    """The seconds for which a machine, or a home, counts as linked after the last word of it."""
    return FAR_UP_SECONDS if is_far else UP_SECONDS


class UnansweredError(ConfigError):
    """A machine was asked, and said nothing in time; it may do so the next time."""


@final
class MachineLinks:
    """All links to this machine. `send` takes a message to a peer of its control server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes, Message], None]) -> None:
        self._loop, self._send = loop, send
        self._linked: dict[str, _Linked] = {}
        self._opened_at = time.monotonic()
        self._signs: dict[str, float] = {}
        self._pending: dict[int, tuple[str, asyncio.Future[Message]]] = {}
        self._number = 0
        self.accounts: list[Callable[[str, Message | None, int, Direction], None]] = []
        """Called with each message from or to a linked machine, and its bytes on the wire; None for a new link."""
        self.error_texts: dict[str, str] = {}
        """Where machines say that texts of errors stay: 'local' or 'home'."""

    def crossed(self, peer: bytes, message: Message, size_bytes: int, direction: Direction) -> None:
        """Count a message of the control server, if its peer is a linked machine."""
        name = self.name_of(peer) if self.accounts else None
        if name is not None:
            for account in list(self.accounts):
                account(name, message, size_bytes, direction)

    def record(self, peer: bytes, message: Message) -> str:
        """Note a machine's announcement; returns its name. ConfigError if another of that name is linked."""
        name, instance, now = str(message["name"]), str(message["instance"]), time.monotonic()
        if len(instance) > INSTANCE_LENGTH_MAX or len(name) > INSTANCE_LENGTH_MAX:
            raise ValueError(f"a machine that calls itself {name[:INSTANCE_LENGTH_MAX]!r}")
        last = self._linked.get(name)
        if last is not None and last.instance != instance and last.is_up:
            do = "Give each machine a --name of its own, or end the other daemon."
            raise ConfigError(f"Linking the machine {name!r}", "one machine of that name", "two", do)
        offers = not message.get("loop") and message.get("part") is None
        islands = int(message.get("islands") or 0) if offers else 0
        self._linked[name] = _Linked(peer, instance, now, bool(message.get("far")), islands)
        self._signs[name] = now
        texts = message.get("error_texts")
        if texts in ("local", "home"):
            self.error_texts[name] = texts
        if last is None or last.peer != peer:
            for account in list(self.accounts):
                account(name, None, 0, "received")
        return name

    def name_of(self, peer: bytes) -> str | None:
        """The machine that has a peer's link."""
        return next((name for name, linked in self._linked.items() if linked.peer == peer), None)

    def is_up(self, name: str) -> bool:
        """Whether a machine announced itself a moment ago."""
        linked = self._linked.get(name)
        return linked is not None and linked.is_up

    def offering(self) -> list[str]:
        """The machines that are linked and offer islands to any run, first those that were linked first."""
        return [name for name, linked in self._linked.items() if linked.is_up and linked.islands]

    def expect(self, name: str) -> None:
        """A machine has just been admitted, and will link itself."""
        self._signs[name] = time.monotonic()

    def away_seconds(self, name: str) -> float:
        """Seconds since a machine announced itself or was admitted; infinite where it has left.

        Where neither has happened they count from the start of this daemon.
        """
        return time.monotonic() - self._signs.get(name, self._opened_at)

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
        if self._linked.pop(name, None) is not None:
            self._signs[name] = -math.inf

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
        self._pending[number] = name, answer
        self.send(name, {"type": REQUEST, "number": number, "message": message})
        try:
            async with asyncio.timeout(seconds_max):
                response = await answer
        except TimeoutError:
            doing, do = f"Asking the machine {name!r}", "Look at its daemon, and at the network between."
            raise UnansweredError(doing, "an answer", f"none within {seconds_max:.0f} s", do) from None
        finally:
            del self._pending[number]
        try:
            if str(response["type"]) == "refused":
                raise ConfigError.of([Fault(*map(str, fault)) for fault in response["faults"]])
        except (LookupError, TypeError, ValueError) as error:
            doing, do = f"Asking the machine {name!r}", "Use one version everywhere."
            raise ConfigError(doing, "an answer", shortened(f"{type(error).__name__}: {error}", 500), do) from None
        return response

    def on_response(self, name: str, message: Message) -> None:
        """Hand a machine's answer to the request that waits for it."""
        machine, answer = self._pending.get(int(message["number"]), ("", None))
        if answer is not None and machine == name and not answer.done():
            answer.set_result(dict(message["message"]))


def refusal(error: Exception) -> dict[str, Any]:
    """The message of a refusal, from a ConfigError or one of MALFORMED."""
    if not isinstance(error, ConfigError):
        actual = shortened(f"{type(error).__name__}: {error}", 500)
        error = ConfigError("Reading a message", "one that a daemon can act on", actual, "Use one version everywhere.")
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


INSTANCE: Final = secrets.token_hex(8)
"""Distinguishes this process from any other of the same name."""
REDIAL_BEATS: Final = 6
"""After three seconds of silence the connection is made again: one that a cut has left half open may need minutes to
fail."""
FAR_REDIAL_BEATS: Final = 120
"""A minute where the way leads through a bucket: a connection takes some round trips of seconds, and breaks with its
passage."""


@final
@dataclass(frozen=True, slots=True)
class HomeAddress:
    """Another machine and its daemon's address; `public_key` is empty without keys."""

    name: str
    address: str
    public_key: str = ""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def identity(self) -> str:
        """What makes it the same machine: its key, whatever its address is by now, or the address where it has none."""
        return self.public_key or self.address


HomeHandler = Callable[[HomeAddress, Message], Awaitable[Message]]
"""Answers a message of a home that this machine is linked to."""


@final
class HomeLink:
    """The link to a home.

    Arguments:
        loop: that of the daemon.
        home: where it is.
        keys: this machine's and the admitted ones; None without.
        describe: gives this machine's announcement.
        orders: receives every message but requests.
        answer: awaited for the answer to a request.
        on_refused: called for each failed connection, with a key of WORDS.
        is_far: the way leads through a bucket.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        home: HomeAddress,
        keys: Keyring | None,
        *,
        describe: Callable[[], Message],
        orders: Callable[[HomeLink, Message], None],
        answer: Callable[[HomeAddress, Message], Any],
        on_refused: Callable[[HomeAddress, str], None] = lambda home, reason: None,
        is_far: bool = False,
    ) -> None:
        """Dial; ConfigError if the address leaves the machine and there are no keys."""
        self.home = home
        self._locate: Callable[[], str] = lambda: self.home.address
        """Returns the address to dial, each time."""
        self.refused = ""
        self.faults: list[Fault] = []
        self._refused_since = 0.0
        self._loop, self._describe, self._orders, self._answer = loop, describe, orders, answer
        self._on_refused, self._is_far = on_refused, is_far
        self._heard_at = float("-inf")
        self._silent_beats = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = self._is_parted = False
        self._client = ControlClient(
            loop,
            home.address,
            self._hear,
            keys=keys,
            server_key=home.public_key,
            is_far=is_far,
            on_refused=self._note_refusal,
            on_stranger=self._note_version,
        )
        self._beat()

    @property
    def is_up(self) -> bool:
        """Whether a message arrived a moment ago."""
        return time.monotonic() - self._heard_at < up_seconds(is_far=self._is_far)

    def locate_by(self, locate: Callable[[], str]) -> None:
        """Ask for the address of the home from now on."""
        self._locate = locate

    def redial(self) -> None:
        """Connect anew, to where the home is now."""
        self.home = replace(self.home, address=self._locate())
        self._client.dial(self.home.address)

    def send(self, message: Message) -> None:
        """Send a message to the home; dropped while the link is down."""
        self._client.send(message)

    def part(self, message: Message) -> None:
        """Say good-bye: announce this machine no more, which the home would take for one that is back."""
        self._is_parted = True
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
        return bool(self.faults) and time.monotonic() - self._refused_since > 2 * up_seconds(is_far=self._is_far)

    def close(self) -> None:
        """Hang up."""
        self._is_closed = True
        self._client.close()

    def _note_refusal(self, reason: str) -> None:
        self.refused = WORDS[reason]
        self._on_refused(self.home, reason)
        if reason == UNADMITTED and self._heard_at > 0:
            self._orders(self, {"type": EXPELLED})

    def _note_version(self, message: Message) -> None:
        doing, do = f"Linking to {self.home.address}", "Install the same isthmus on both."
        self.refuse([Fault(doing, f"{version_of()}, as here", version_of(message), do)])

    def _beat(self) -> None:
        if self._is_closed or self._is_parted:
            return
        self._silent_beats += 1
        if self._silent_beats % (FAR_REDIAL_BEATS if self._is_far else REDIAL_BEATS) == 0:
            self.redial()
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
            actual = f"{type(error).__name__}: {error}"
            do = "Use one version everywhere."
            answer = refusal(ConfigError("Answering a request", "one that can be acted on", actual, do))
        if not self._is_closed:
            self._client.send({"type": RESPONSE, "number": message.get("number"), "message": answer})
