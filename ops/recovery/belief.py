"""Which version a shard that comes back continues from, among those that learners claim to hold.

Decides which claims to believe. The versions of learners are all that a shard can continue from, and one learner may be
wrong. Hosts that only hold the model (`hold`) have it from the shard itself, so a version that they know is believed
from any learner with the same bytes, and from no other. A version that they do not know, because it was the last one
published, is believed where half of those that answer, or more, claim to hold it or a newer one: so of three no single
one is believed, and of two one is, because either may be wrong. Where they have different bytes for it, the largest
agreeing group is believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import xxhash


class Claim(NamedTuple):
    """A learner's claim to hold a version, [epoch, count], with the digest of its contents."""

    version: tuple[int, int]
    digest: str
    slot: int


def digest_of(values: Any, clock: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> str:
    """The digest of a version: of its values, float32, and of the clock and positions of the work in them."""
    told = msgspec.msgpack.encode([[list(row) for row in clock], [list(row) for row in positions]])
    return xxhash.xxh3_128_hexdigest(xxhash.xxh3_128_digest(memoryview(values).cast("B")) + told)


def is_denied(claim: Claim, known: Mapping[tuple[int, int], str]) -> bool:
    """Whether holders of the model know the claimed version, with another digest."""
    return known.get(claim.version, claim.digest) != claim.digest


def believed(claims: Sequence[Claim], known: Mapping[tuple[int, int], str]) -> Claim | None:
    """The claim to continue from; None if all are denied. `known` are digests by version."""
    sound = [claim for claim in claims if not is_denied(claim, known)]
    if not sound:
        return None
    versions = sorted((claim.version for claim in sound), reverse=True)
    credible = max(versions[(len(versions) - 1) // 2], max(known, default=(0, 0)))
    agreeing = Counter((claim.version, claim.digest) for claim in sound)
    return max(
        (claim for claim in sound if claim.version <= credible),
        key=lambda claim: (claim.version, agreeing[claim.version, claim.digest], -claim.slot),
    )
