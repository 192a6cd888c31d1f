"""Whom a shard that comes back believes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.recovery.hold import Claim, believed, digest_of, is_denied

VERSIONS = st.tuples(st.integers(1, 2), st.integers(0, 3))
CLAIMS = st.lists(st.builds(Claim, VERSIONS, st.sampled_from("ab"), st.integers(0, 9)), max_size=6)


def claim(version: tuple[int, int], digest: str, slot: int = 0) -> Claim:
    return Claim(version, digest, slot)


def test_what_holders_know_is_believed_of_whoever_gives_the_same_bytes() -> None:
    wrong, right = claim((1, 7), "forged", 0), claim((1, 7), "true", 3)
    assert believed([wrong, right], {(1, 7): "true"}) == right
    assert believed([wrong], {(1, 7): "true"}) is None


def test_a_newer_version_than_holders_know_is_believed_of_half_of_those_that_answer() -> None:
    known, old = {(1, 6): "old"}, [claim((1, 6), "old", slot) for slot in range(4)]
    ahead = claim((1, 7), "new", 5)
    assert believed([*old[:2], ahead], known).version == (1, 6)
    assert believed([old[0], ahead], known) == ahead
    assert believed([ahead], known) == ahead
    assert believed([*old[:2], ahead, claim((1, 8), "newer", 6)], known) == ahead, "the newest is only one's"


def test_a_single_learner_cannot_invent_a_version() -> None:
    honest = [claim((1, 6), "old", 1), claim((1, 6), "old", 2)]
    assert believed([claim((1, 1000), "forged"), *honest], {}) == honest[0]


def test_of_unlike_bytes_the_most_that_agree_are_believed() -> None:
    assert believed([claim((1, 2), "a", 0), claim((1, 2), "b", 1), claim((1, 2), "b", 2)], {}).digest == "b"


@given(CLAIMS, st.dictionaries(VERSIONS, st.sampled_from("ab"), max_size=3))
def test_model(claims: list[Claim], known: dict[tuple[int, int], str]) -> None:
    """Somebody is believed unless all are denied; nobody who is denied; and never an older version than one that a
    holder confirms."""
    found = believed(claims, known)
    sound = [each for each in claims if not is_denied(each, known)]
    assert (found is None) == (not sound)
    if found is not None:
        assert found in sound
        assert all(found.version >= each.version for each in sound if each.version in known)
        ahead = sum(each.version >= found.version for each in sound)
        assert 2 * ahead >= len(sound) or found.version <= max(known)


def test_a_digest_is_of_values_and_of_the_work_that_is_said_to_be_in_them() -> None:
    values = np.arange(4, dtype=np.float32)
    digest = digest_of(values, [[0, 1, 8]], [[0, 1]])
    assert digest == digest_of(values.copy(), ((0, 1, 8),), ((0, 1),))
    others = [(values + 1, [[0, 1, 8]], [[0, 1]]), (values, [[0, 1, 9]], [[0, 1]]), (values, [[0, 1, 8]], [[0, 2]])]
    assert digest not in {digest_of(*other) for other in others}
