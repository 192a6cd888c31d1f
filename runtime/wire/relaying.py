"""Messages between two members that cannot reach each other, through a third that both have dialled.

Decides what is passed on and to which peer. It never inspects what it passes on: the two have a session of their own,
with its own sequence, credit and digests, whose messages travel inside those of the sessions with the third.

Theory of operation. A message names source and target. Where neither is this host, it is passed on if it comes from its
source and the target is up and near (itself not relayed); else its source is told that the target is unreachable, gives
the connection up and tries again. The backlog is bounded, so a source that sends more than its target granted loses
that connection, and no other peer does. Of the two ends, the lower member begins. Data overtakes control: the first
data message of a connection, which attaches it, waits for the HELLO where it came first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from isthmus.runtime.ids import Member
from isthmus.runtime.items.layout import Bytes
from isthmus.runtime.items.refusal import RefusalError
from isthmus.runtime.protocol import messages
from isthmus.runtime.protocol.session import read_hello
from isthmus.runtime.protocol.session_events import FramesHeard, RelayHeard, UnreachableHeard
from isthmus.runtime.wire.connections import Connections
from isthmus.runtime.wire.peers import Peer


class Relaying:
    """Handles relayed messages on one host, as source, target or relay; `wake(peer)` sends a peer what is pending."""

    def __init__(self, connections: Connections, wake: Callable[[Peer], None], counts: Counter[str]) -> None:
        self._connections, self._wake, self._counts = connections, wake, counts
        self._own = connections.own

    def heard(self, peer: Peer, event: RelayHeard | FramesHeard | UnreachableHeard) -> None:
        """Handle a relayed message from `peer`."""
        if isinstance(event, UnreachableHeard):
            self._hear_unreachable(peer, event)
        elif event.target == self._own.member:
            self._arrive(peer, event)
        elif event.source == peer.member:
            self._pass_on(peer, event)
        else:
            found = f"{peer.member} sent a message of {event.source} for {event.target}"
            self._connections.refuse(peer, RefusalError("stranger", found))

    def _pass_on(self, peer: Peer, event: RelayHeard | FramesHeard) -> None:
        onward = self._near(event.target)
        if onward is not None and onward.session is not None:
            if isinstance(event, RelayHeard):
                fits = onward.session.relay(messages.RELAY, event.source, event.target, event.inner)
            else:
                fits = onward.session.forward(event.source, event.target, event.frames)
            self._wake(onward)
            self._counts["relayed"] += fits
            if fits:
                return
        self._tell_unreachable(peer, event.source, event.target)

    def _arrive(self, through: Peer, event: RelayHeard | FramesHeard) -> None:
        """Handle a message for this host."""
        peer = self._connections.peers.get(event.source)
        if peer is None or peer.route != through.member:
            self._tell_unreachable(through, event.source, event.target)
            return
        frames = [memoryview(event.inner)] if isinstance(event, RelayHeard) else event.frames
        connection = messages.connection_of(frames[0])
        session = peer.session
        # The lower of the two dials: a message of another connection that it gets is of one that it has given up.
        is_new = connection > peer.accepted and peer.member < self._own.member
        if session is not None and connection == session.connection:
            receive = session.receive_control if isinstance(event, RelayHeard) else session.receive_data
            self._connections.hear(peer, session, receive, frames)
        elif isinstance(event, RelayHeard) and is_new:
            self._greet(through, peer, connection, frames[0])
        elif is_new and len(frames) == 1 and len(frames[0]) <= messages.CONTROL_BYTES_MAX:
            peer.early = connection, frames
        else:
            self._counts["stale"] += 1
            if session is None:
                self._tell_unreachable(through, event.source, event.target)

    def _greet(self, through: Peer, peer: Peer, connection: int, frame: Bytes) -> None:
        """Handle the first message of a new connection."""
        assert through.session is not None
        try:
            connection, hello = read_hello(frame, self._own)
            if hello.source != peer.member or self._own.member < peer.member:
                raise RefusalError("stranger", f"{hello.source} dialled through {through.member}")
            self._connections.welcome(peer, self._connections.way_through(through, peer), connection, hello)
            early, peer.early = peer.early, None
            if early is not None and early[0] == connection and peer.session is not None:
                self._connections.hear(peer, peer.session, peer.session.receive_data, early[1])
        except RefusalError as refusal:
            # Where a relay lost the HELLO, the message after it comes first.
            self._counts["stale" if refusal.reason == "state" else f"refused_{refusal.reason}"] += 1
            told = messages.seal(connection, messages.pack_refusal(refusal.reason, str(refusal)))
            through.session.relay(messages.RELAY, self._own.member, peer.member, told)
            self._wake(through)

    def _hear_unreachable(self, peer: Peer, event: UnreachableHeard) -> None:
        if event.source == self._own.member:
            other = self._connections.peers.get(event.target)
            if other is not None and other.route == peer.member:
                self._connections.end(other, f"unreachable through {peer.member}")
        elif event.target == peer.member and (onward := self._near(event.source)) is not None:
            self._tell_unreachable(onward, event.source, event.target)

    def _tell_unreachable(self, peer: Peer, source: Member, target: Member) -> None:
        if peer.session is not None:
            peer.session.relay(messages.UNREACHABLE, source, target)
            self._wake(peer)

    def _near(self, member: Member) -> Peer | None:
        """A peer that is up, and not itself relayed."""
        peer = self._connections.peers.get(member)
        return peer if peer is not None and peer.is_up and not isinstance(peer.route, Member) else None
