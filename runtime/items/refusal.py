"""Reasons for refusing input from a peer: one list, which statistics and documents use."""

from __future__ import annotations

from typing import Final

from isthmus.runtime.errors import RemoteProtocolError

REASONS: Final = {
    "truncated": "a first frame too short for its prefix",
    "oversized": "a frame, or a message, larger than any of ours",
    "magic": "bytes that are no message of ours",
    "version": "another protocol version",
    "run": "a host of another run",
    "fingerprint": "a host with another graph, configuration or sources",
    "stranger": "a message for another member, or from one that has left",
    "keyless": "a connection without keys, where there are keys",
    "unadmitted": "a connection with a key that is not admitted",
    "mistaken": "a connection of somebody who expected another machine, or has no key in truth",
    "cut": "a connection that ended, or said nothing for 5 s, before keys were shown",
    "expelled": "a message with a key that is not admitted any more",
    "machine": "a member that lives on another machine than the one whose key was shown, or on none that is known yet",
    "connection": "a connection number that is not newer, or not this one",
    "crossed": "both sides dialled; the other connection stays",
    "silence": "nothing heard for too long",
    "crowd": "more peers, edges or half-open connections than are allowed",
    "digest": "damaged bytes",
    "encoding": "no msgpack, or not of the agreed types",
    "message": "fields of the wrong number, type or range",
    "depth": "too many levels or leaves",
    "keys": "dict keys other than texts and integers",
    "dtype": "an unknown dtype, or too many axes",
    "shape": "a shape that does not fit the bytes",
    "size": "a size that is not the one announced, or too large",
    "memory": "announced arrays for which there is no memory",
    "state": "a message that has no place in this state of the connection",
    "sequence": "items out of order, twice, or missing",
    "credit": "more bytes, items or messages than were granted or sent",
}
"""Reason -> what it means."""


class RefusalError(RemoteProtocolError):
    """Input from a peer is not accepted; `reason` is a key of REASONS."""

    def __init__(self, reason: str, story: str) -> None:
        super().__init__(f"{reason}: {story}")
        assert reason in REASONS, reason
        self.reason = reason
