"""The sockets that a host has bound, and the peers that connect to them.

Decides which session a message belongs to, by the address that ZeroMQ gave its connection, and drops what belongs to
none. The `Listener` decides which peers to accept; with keys, `zap` decides which machines may connect at all, and here
only that a member uses the key of the machine that it lives on.

Theory of operation. ZeroMQ gives each connection to a ROUTER an address that no other one has. A peer may choose a free
one; with keys an address therefore counts together with its machine. An address is unknown, known, or refused. The
first message of an unknown one must be a HELLO on the control socket, or an ATTACH with the token of a HELLO on the
data socket (either may come first). Anything else, and anything that a session does not accept, makes it refused: it
gets the reason, once, and its messages are dropped by their address. The tables are bounded; a refused address that was
forgotten is unknown again, and costs one more check.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from isthmus.runtime.channels.contract import Endpoints
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import Member
from isthmus.runtime.items.layout import Bytes
from isthmus.runtime.items.refusal import RefusalError
from isthmus.runtime.protocol import messages
from isthmus.runtime.protocol.messages import Hello
from isthmus.runtime.protocol.session import Identity, read_hello
from isthmus.runtime.security.keys import check_open
from isthmus.runtime.wire.links import AcceptedLink
from isthmus.runtime.wire.sockets import Sockets

REFUSED_MAX: Final = 4096
"""Addresses that are remembered as refused."""
EARLY_MAX: Final = 64
"""Data connections whose control connection has not sent its HELLO yet: they differ by less than a round trip."""


class Listener(Protocol):
    """Accepts peers whose first message is valid."""

    def accept(self, link: AcceptedLink, connection: int, hello: Hello) -> Ears:
        """Accept a peer, or raise RefusalError."""


class Ears(Protocol):
    """Handlers for the messages of one peer."""

    def hear_control(self, frames: list[Bytes]) -> None:
        """Handle a message on the control socket."""

    def hear_data(self, frames: list[Bytes]) -> None:
        """Handle a message on the data socket."""


Known: TypeAlias = tuple[AcceptedLink, Ears]
MachineOf: TypeAlias = Callable[[Member], str | None]


class Reception:
    """A bound pair of sockets. `counts` gets the reasons of refusals. `machine_of(member)` is the member's machine."""

    def __init__(
        self,
        sockets: Sockets,
        own: Identity,
        listener: Listener,
        counts: Counter[str],
        machine_of: MachineOf,
    ) -> None:
        self._own, self._listener, self._counts = own, listener, counts
        self._keys, self._machine_of = sockets.keys, machine_of
        self._control = sockets.router("control", self._control_came, counts)
        self._data = sockets.router("data", self._data_came, counts)
        self._controls: dict[bytes, Known] = {}
        self._datas: dict[bytes, Known] = {}
        self._awaited: dict[bytes, Known] = {}
        self._tokens: dict[AcceptedLink, bytes] = {}
        self._early: OrderedDict[bytes, tuple[bytes, list[Bytes], str | None]] = OrderedDict()
        self._refused: OrderedDict[bytes, None] = OrderedDict()

    def bind(self, endpoint: str) -> Endpoints:
        """Listen at `tcp://ADDRESS:PORT` and the port after it, or at two free ports where PORT is 0.

        Raises ConfigError where that is not possible, and for an address that others can reach where there are no keys.
        """
        check_open(endpoint, self._keys, f"listening at {endpoint} for {self._own.member}")
        address, _, port = endpoint.rpartition(":")
        try:
            control = self._control.bind(endpoint)
            data = self._data.bind(f"{address}:{int(port) + 1 if int(port) else 0}")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"listening at {endpoint} for {self._own.member}",
                "an endpoint tcp://ADDRESS:PORT of this machine, whose port and the next one are free",
                str(error),
                "Choose another port, or 0 for any that is free.",
            ) from error
        return Endpoints(control, data, "" if self._keys is None else self._keys.pair.public)

    def close(self) -> None:
        """Close both sockets."""
        self._control.close()
        self._data.close()

    def _control_came(self, address: bytes, frames: list[Bytes], machine: str | None) -> None:
        known = self._controls.get(address)
        if known is not None:
            self._hear(known, machine, known[1].hear_control, frames)
        elif address in self._refused:
            self._counts["unheard"] += 1
        else:
            try:
                self._greet(address, frames, machine)
            except RefusalError as refusal:
                self._refuse(address, refusal)
                connection = messages.connection_of(frames[0])
                told = messages.seal(connection, messages.pack_refusal(refusal.reason, str(refusal)))
                self._control.send([address, told])

    def _hear(
        self, known: Known, machine: str | None, hear: Callable[[list[Bytes]], None], frames: list[Bytes]
    ) -> None:
        """Handle a message from a known address. A peer may choose its ZeroMQ address; its key proves the machine."""
        if known[0].machine == machine:
            hear(frames)
        else:
            self._counts["refused_machine"] += 1

    def _greet(self, address: bytes, frames: list[Bytes], machine: str | None) -> None:
        if len(frames) != 1:
            raise RefusalError("message", f"a HELLO of {len(frames)} frames")
        connection, hello = read_hello(frames[0], self._own)
        if hello.token in self._awaited or hello.token in self._tokens.values():
            raise RefusalError("stranger", f"the token of {hello.source} is in use")
        home = self._machine_of(hello.source)
        if machine is not None and home != machine:
            lives = "is not known here yet" if home is None else f"lives on {home!r}"
            raise RefusalError("machine", f"{hello.source} {lives}, and machine {machine!r} speaks for it")
        link = AcceptedLink((self._control, self._data), address, self._forget, machine)
        ears = self._listener.accept(link, connection, hello)
        self._controls[address] = link, ears
        self._tokens[link] = hello.token
        self._awaited[hello.token] = link, ears
        early = self._early.pop(hello.token, None)
        if early is not None:
            self._attach(hello.token, *early)

    def _data_came(self, address: bytes, frames: list[Bytes], machine: str | None) -> None:
        known = self._datas.get(address)
        if known is not None:
            self._hear(known, machine, known[1].hear_data, frames)
        elif address in self._refused or self._is_early(address):
            self._counts["unheard"] += 1
        else:
            try:
                if len(frames) != 1:
                    raise RefusalError("message", f"an ATTACH of {len(frames)} frames")
                _, kind, body = messages.unseal(frames[0], messages.CONTROL_BYTES_MAX)
                if kind != messages.ATTACH:
                    raise RefusalError("state", f"a data connection begins with ATTACH, not with kind {kind}")
                self._attach(messages.token_of(body), address, frames, machine)
            except RefusalError as refusal:
                self._refuse(address, refusal)

    def _attach(self, token: bytes, address: bytes, frames: list[Bytes], machine: str | None) -> None:
        awaited = self._awaited.get(token)
        if awaited is not None:
            link, ears = awaited
            if link.machine != machine:
                raise RefusalError("machine", f"a token of {link.machine}, shown by {machine}")
            del self._awaited[token]
            link.data = address
            self._datas[address] = awaited
            ears.hear_data(frames)
        elif token in self._early:
            raise RefusalError("stranger", "a second data connection with one token")
        else:
            self._early[token] = address, frames, machine
            if len(self._early) > EARLY_MAX:
                _, (oldest, _, _) = self._early.popitem(last=False)
                self._refuse(oldest, RefusalError("crowd", "too many data connections wait for a HELLO"))

    def _is_early(self, address: bytes) -> bool:
        """Whether a data connection waits for its HELLO, or in vain: its control connection may have ended first."""
        return any(address == early for early, _, _ in self._early.values())

    def _forget(self, link: AcceptedLink) -> None:
        """Forget the addresses of a link whose session is over."""
        token = self._tokens.pop(link, None)
        if token is None:
            return
        self._awaited.pop(token, None)
        for known, address in ((self._controls, link.control), (self._datas, link.data)):
            if address is not None:
                known.pop(address, None)
                self._bar(address)

    def _refuse(self, address: bytes, refusal: RefusalError) -> None:
        self._counts[f"refused_{refusal.reason}"] += 1
        self._bar(address)

    def _bar(self, address: bytes) -> None:
        self._refused[address] = None
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)
