"""Where the hosts of a run speak to the daemon of their own machine: on loopback, each for the life that it is.

It decides who may speak: the present life of its replica, as the supervisor knows it. Whoever speaks for another life
is told to end; a host of another run, whose daemon had this port before, is left alone. What hosts say is noted in
their lives, and told to the owner, who decides what follows; so a home and an outpost have the same gate.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from isthmus.runtime.control import ControlServer, Message
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.lives import Life
from isthmus.runtime.supervisor import Supervisor

REFUSED_MAX: Final = 256
"""Different faults of messages that are told apart."""

Handler = Callable[[bytes, Message], None]


class Owner(Protocol):
    """Who is told what hosts say."""

    def life_heard(self, life: Life) -> None:
        """It said hello, or that it lives."""

    def life_failed(self, life: Life) -> None:
        """A body of it raised; its process will end."""

    def life_over(self, life: Life) -> None:
        """It says that everything final is there."""


class Gate:
    """The gate of one run on one machine. `commands` are messages that no host sends. Once `farewell` is set, every
    host that speaks is told to end, for that reason."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listen: str,
        run: str,
        supervisor: Supervisor,
        owner: Owner,
        commands: Mapping[str, Handler],
    ) -> None:
        """Bind; zmq.ZMQError if the endpoint is taken."""
        self.farewell = ""
        self._run, self._supervisor, self._owner = run, supervisor, owner
        self._server = ControlServer(loop, listen, self._hear)
        self._handlers: dict[str, Handler] = {
            "hello": self._heard,
            "heartbeat": self._heard,
            "over": self._over,
            "failed": self._failed,
            **commands,
        }

    @property
    def endpoint(self) -> str:
        """Where hosts find it."""
        return self._server.endpoint

    @property
    def refused(self) -> Counter[str]:
        """What was sent here that nobody could act on."""
        return self._server.refused

    def send(self, peer: bytes, message: Message) -> None:
        """Tell one host, or answer a command."""
        self._server.send(peer, message)

    def send_all(self, message: Message) -> None:
        """Tell every host on this machine that has spoken."""
        for life in self._supervisor.lives.values():
            if life.peer:
                self._server.send(life.peer, message)

    def close(self) -> None:
        """Unbind."""
        self._server.close()

    def _hear(self, peer: bytes, message: Message) -> None:
        handler = self._handlers.get(message["type"])
        if handler is None:
            self.refused["unknown type"] += 1
            return
        try:
            handler(peer, message)
        except (KeyError, TypeError, ValueError) as error:
            told = f"malformed {message['type']}: {error}"[:200]
            self.refused[told if len(self.refused) < REFUSED_MAX or told in self.refused else "others"] += 1

    def _life_of(self, peer: bytes, message: Message) -> Life | None:
        """The life that a message comes from, if it is the present one of its replica; others are told to end."""
        if message["run"] != self._run:
            raise ValueError("a host of another run")
        member = Member(Replica.parse(message["replica"]), int(message["incarnation"]))
        life = self._supervisor.lives.get(member.replica)
        if life is None or life.member != member or life.watch is None:
            # Of one that is being started, nobody knows yet which process it is.
            if self._supervisor.is_starting(member.replica):
                self.refused["too early"] += 1
            else:
                self._server.send(peer, {"type": "exit", "reason": "another incarnation has taken this place"})
            return None
        life.take(message, time.monotonic())
        life.peer = peer
        if self.farewell:  # It was not there when everybody was told.
            self._server.send(peer, {"type": "exit", "reason": self.farewell})
        return life

    def _heard(self, peer: bytes, message: Message) -> None:
        life = self._life_of(peer, message)
        if life is not None:
            self._owner.life_heard(life)

    def _over(self, peer: bytes, message: Message) -> None:
        life = self._life_of(peer, message)
        if life is not None:
            self._owner.life_over(life)

    def _failed(self, peer: bytes, message: Message) -> None:
        life = self._life_of(peer, message)
        if life is not None:
            life.error = str(message["error"])
            self._owner.life_failed(life)
