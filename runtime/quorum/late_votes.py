"""Votes that came too late for their round, and may count in the next round of its chain.

It decides which late vote of a voter is kept: that of the latest round. `core` decides when a round closes and which
voters are live, and takes the votes it needs. Memory: one vote for each chain and live voter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from isthmus.runtime.ids import Handle, Replica

CHAINS_MAX: Final = 4096
"""Chains are numbered from 0: those of the shipped programs are fragments."""


class LateVote(NamedTuple):
    """A vote, and the round that it was cast in."""

    key: int
    voter: Replica
    handle: Handle


@dataclass(slots=True)
class LateVotes:
    """The late votes of one quorum node."""

    _chains: dict[int, dict[Replica, LateVote]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._chains.values()))

    def voters(self, chain: int | None) -> list[Replica]:
        """The voters whose votes are kept in a chain, sorted."""
        return sorted(self._chains.get(chain, ())) if chain is not None else []

    def keep(self, chain: int, vote: LateVote) -> LateVote | None:
        """Keep a vote; returns the vote that it displaces, or `vote` itself if a later round's is kept, or None."""
        votes = self._chains.setdefault(chain, {})
        known = votes.get(vote.voter)
        if known is not None and known.key > vote.key:
            return vote
        votes[vote.voter] = vote
        return known

    def take(self, chain: int, voter: Replica) -> LateVote:
        """Remove and return a kept vote; KeyError if there is none."""
        vote = self._chains[chain].pop(voter)
        if not self._chains[chain]:
            del self._chains[chain]
        return vote

    def take_all(self, voter: Replica) -> list[LateVote]:
        """Remove and return all kept votes of a voter, by chain."""
        return [self.take(chain, voter) for chain in sorted(self._chains) if voter in self._chains[chain]]

    def everybody(self) -> set[Replica]:
        """The voters with a kept vote in any chain."""
        return {voter for votes in self._chains.values() for voter in votes}
