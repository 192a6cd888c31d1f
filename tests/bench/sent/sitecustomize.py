"""Counts what hosts hand to the links to their peers: on PYTHONPATH, every process of a run imports this by itself.

Each life writes SENT_FOLDER/ROLE-SLOT.jsonl, a line at most every tenth of a second: nanoseconds of the monotonic clock
and the bytes so far by the role of the peer, of all frames, control messages and heartbeats among them. What another
host relays counts for the peer that it is for, and not for the one that relays it, too.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LINE_NS = 100_000_000


class Sent:
    """The bytes of one host."""

    def __init__(self, own: Any) -> None:
        self._path = Path(os.environ["SENT_FOLDER"], f"{own.replica.role}-{own.replica.slot}.jsonl")
        self._by_role: Counter[str] = Counter()
        self._written = 0

    def count(self, role: str, size: int) -> None:
        """So many bytes more for a peer of this role."""
        self._by_role[role] += size
        now = time.monotonic_ns()
        if now - self._written >= LINE_NS:
            self._written = now
            with self._path.open("a") as file:
                file.write(json.dumps([now, self._by_role]) + "\n")


def _install() -> None:
    from isthmus.runtime.wire.connections import Connections

    sent: dict[Any, Sent] = {}
    start = Connections._start

    def started(self: Any, peer: Any, session: Any, link: Any) -> None:
        own, role = self.own.member, peer.member.replica.role
        counts = sent.setdefault(own.replica, Sent(own))
        control, data = link.send_control, link.send_data

        def send_control(message: bytes) -> bool:
            counts.count(role, len(message))
            return bool(control(message))

        def send_data(frames: Sequence[Any]) -> bool:
            counts.count(role, sum(map(len, frames)))
            return bool(data(frames))

        link.send_control, link.send_data = send_control, send_data
        start(self, peer, session, link)

    Connections._start = started  # type: ignore[method-assign]


if "SENT_FOLDER" in os.environ:
    _install()
