"""One open round of votes: its quorum, when it ends, and why it closes.

A function of the round's members, its votes and the live replicas; it changes nothing and knows no other round. `core`
opens, fills, settles and ends it, and documents the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Handle, Replica
from isthmus.runtime.quorum.messages import RoundOpened

NAMES_MAX: Final = 8
"""Replicas that a sentence names before it only counts them."""


@dataclass(slots=True)
class OpenRound:
    """An open round; `opened` is its newest attempt, `members` maps that attempt's replicas to incarnations, sorted.

    `live_count` of these are live, and `missing` are those of the live that have not voted, sorted. Both are kept,
    because every vote asks for them.
    """

    opened: RoundOpened
    members: dict[Replica, int]
    opened_at: Instant
    votes: dict[Replica, Handle] = field(default_factory=dict)
    quorum_at: Instant | None = None
    timer: int = 0
    timer_at: Instant | None = None
    live_count: int = 0
    missing: dict[Replica, None] = field(default_factory=dict)

    def count(self, live: Mapping[Replica, int]) -> None:
        """Set `live_count` and `missing` anew: the members have changed, or one of them has joined or left."""
        self.live_count, self.missing = self.census(live)

    def vote(self, voter: Replica, handle: Handle) -> None:
        """Count the vote of a member."""
        self.votes[voter] = handle
        self.missing.pop(voter, None)

    def census(self, live: Mapping[Replica, int]) -> tuple[int, dict[Replica, None]]:
        """The number of live members, and those of them that have not voted, sorted."""
        present = [slot for slot, incarnation in self.members.items() if live.get(slot) == incarnation]
        return len(present), dict.fromkeys(slot for slot in present if slot not in self.votes)

    def has_quorum(self) -> bool:
        """Whether the votes reach the effective quorum."""
        return len(self.votes) >= max(1, min(self.opened.count_min, self.live_count))

    def end(self) -> Instant | None:
        """When the round closes if nothing else happens; None if time alone does not close it."""
        end = self.end_of_grace() if self.missing else self.quorum_at
        if end is None or not self._awaits():
            return end
        return None if self.opened.deadline is None else max(end, Instant(self.opened_at + self.opened.deadline))

    def end_of_grace(self) -> Instant | None:
        """When the grace ends; None before the quorum, and where it has no limit."""
        grace = self.opened.grace
        return None if self.quorum_at is None or grace is None else Instant(self.quorum_at + grace)

    def reason(self) -> str:
        """Why the round closes, as a sentence; valid only where it does."""
        opened, votes, members = self.opened, len(self.votes), len(self.members)
        live_count, missing = self.live_count, tuple(self.missing)
        if live_count == 0:
            return f"no member is live any more; votes cast before: {votes}"
        if not missing and live_count == members == votes:
            return f"all {members} members voted" if members > 1 else "the only member voted"
        if not missing:
            return f"all live members voted, {live_count} of {members}; votes in all: {votes}"
        what = f"grace of {(opened.grace or 0) / 1e6:.1f} ms"
        if self._awaits() and self.end() != self.end_of_grace():
            what = f"deadline of {(opened.deadline or 0) / 1e6:.1f} ms for required voters"
        more = f" and {len(missing) - NAMES_MAX} more" if len(missing) > NAMES_MAX else ""
        names = ", ".join(map(str, missing[:NAMES_MAX])) + more
        settled = "; no required voter is awaited" if opened.required and not self._awaits() else ""
        return f"{what} ended with {votes} of {votes + len(missing)}; {names} left out{settled}"

    def _awaits(self) -> bool:
        return any(slot in self.missing for slot in self.opened.required)
