"""Which version a shard that comes back goes on from, of those that learners say they hold.

Decides whom to believe. What learners hold is all that a shard has to go on from, and one of them may be wrong. Those
who only hold the model (`hold`) have it from the shard itself, so a version that they know is believed of whoever gives
the same bytes, and of nobody else. A version that they do not know, for it was the last that was published, is believed
where half of those that answer, or more, say that they hold it or a newer one: so of three no single one is, and one of
two is, for nobody can say which is wrong. Where they give unlike bytes for it, the most that agree are believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import xxhash


class Claim(NamedTuple):
    """What a learner says that it holds: a version, [epoch, count], and the digest of what belongs to it."""

    version: tuple[int, int]
    digest: str
    slot: int


def digest_of(values: Any, clock: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> str:
    """That of a version: of its values, float32, and of what is said of the work that is in them."""
    told = msgspec.msgpack.encode([[list(row) for row in clock], [list(row) for row in positions]])
    return xxhash.xxh3_128_hexdigest(xxhash.xxh3_128_digest(memoryview(values).cast("B")) + told)


def is_denied(claim: Claim, known: Mapping[tuple[int, int], str]) -> bool:
    """Whether those who hold the model know the version that is claimed, and it is another."""
    return known.get(claim.version, claim.digest) != claim.digest


def believed(claims: Sequence[Claim], known: Mapping[tuple[int, int], str]) -> Claim | None:
    """The claim to go on from; None if all are denied. `known` are digests by version."""
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
