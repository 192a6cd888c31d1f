"""What the next shard has of one, by hand: when a state is whole, what the next life is given, and what that does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.messages import Kept, NeighbourHeld, is_withdrawn
from isthmus.ops.recovery.hold import NEIGHBOUR, digest_of
from isthmus.ops.syncer.neighbour import NeighbourHold, StateCoder
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.schemas import compiled
from tests.ops.bodies import Context
from tests.ops.syncer.test_merge_and_outer_step import PARTS
from tests.ops.syncer.test_momentum_kept import MU, SIZE, coded, former, gradient, kept_of, shard, step

OWNER, HOME = (Replica("syncer", 0), 0), (Replica("recorder", 0), 0)


class Pair:
    """Shard 0 of as many shards as there are fragments, what codes its states, and what its neighbour holds."""

    def __init__(self, update: str = "float32") -> None:
        self.coder = StateCoder(PARTS)
        self.coder.open(Context("syncer"))
        self.hold = NeighbourHold(PARTS, role="syncer", shards=len(PARTS))
        self.context = Context("syncer", 1)
        self.hold.open(self.context)
        self.lives(1)
        self.outer = coded(1) if update == "int4" else shard(1)
        self.state: Any = None
        self.published(self.outer(gradient=gradient("initial", [1, 0], 1.0)))

    def lives(self, life: int) -> None:
        self.context.live = {Member(Replica("syncer", 0), life), Member(Replica("syncer", 1), 1)} if life else set()

    def published(self, emitted: Any, *, update: bool = True, rest: bool = True) -> list[tuple[str, Any]]:
        """What comes of it at the neighbour, which may get one part of it alone."""
        self.state = emitted["state"]
        [(_, codes)] = self.coder(state={OWNER: self.state}) or []
        assert compiled(NeighbourHold.schemas(PARTS)["coded"])(codes, {}, Member(Replica("syncer", 0), 1)) is None
        whole = {name: self.state[name] for name in self.state if name not in ("tensors", "lengths")}
        arrived: dict[str, Any] = {"update": {OWNER: whole}} if update else {}
        return self.fire(**arrived, **({"coded": {OWNER: codes}} if rest else {}))

    def merged(self, count: int, life: int = 1, **parts: bool) -> list[tuple[str, Any]]:
        return self.published(step(self.outer, life, count), **parts)

    def fire(self, **arrived: Any) -> list[tuple[str, Any]]:
        emitted = self.hold(**arrived) or []
        for port, item in emitted:
            if port in ("held", "kept"):
                form = NeighbourHeld if port == "held" else Kept
                assert compiled(form)(item, {}, Member(Replica("syncer", 1), 1)) is None
        return emitted

    def gifts(self, life: int) -> tuple[Any, Any]:
        """The copy and the rest that a life of the shard is given, and that they are given once."""
        self.lives(life)
        emitted = dict(self.fire())
        assert self.fire() == []
        return emitted["copy"], emitted["kept"]


@pytest.mark.parametrize("update", ["float32", "int4"])
def test_the_next_life_is_given_the_newest_values_and_a_momentum_as_new(update: str) -> None:
    pair = Pair(update)
    for count in (1, 2, 3):
        pair.merged(count)
    state, (copy, kept) = pair.state, pair.gifts(2)
    assert copy["version"] == kept["version"] == [1, 3]
    assert copy["values"].tobytes() == state["values"].tobytes()
    back = coded(2) if update == "int4" else shard(2)
    back(gradient=gradient("recover", [1, 3], copy["values"]))
    told = step(back, 2, 4, kept)
    assert told["merged"]["momentum"] == [1, 3]
    alone = step(pair.outer, 1, 4)["state"]["tensors"]
    error = np.abs(state["tensors"]["momentum"]).max() / 254
    for name, tensor in told["state"]["tensors"].items():
        np.testing.assert_allclose(tensor, alone[name], atol=1.01 * error)


def test_a_state_is_held_once_both_of_its_parts_are_there() -> None:
    pair = Pair()
    pair.merged(1)
    assert pair.merged(2, rest=False) == []
    assert pair.merged(3, update=False) == []
    copy, kept = pair.gifts(2)
    assert copy["version"] == kept["version"] == [1, 1]
    pair = Pair()
    pair.merged(1, rest=False)
    pair.published({"state": pair.state}, update=False)
    copy, kept = pair.gifts(2)
    assert copy["version"] == kept["version"] == [1, 1], "whichever comes first"


def test_it_says_what_it_holds_of_its_owner_and_what_of_that_the_next_life_is_given() -> None:
    pair = Pair()
    pair.merged(2)
    pair.lives(2)
    held = dict(pair.fire())["held"]
    assert (held["holder"], held["owner"], held["fragments"], held["merged"]) == (NEIGHBOUR, 0, [0], [0])
    digest = digest_of(pair.state["values"], [], [])
    assert (held["lives"], held["given"]) == ([[0, 2], [1, 1]], [[0, 1, 2, digest, []]])


def test_what_is_of_another_shard_is_not_held() -> None:
    hold = NeighbourHold(PARTS, role="syncer", shards=2)
    hold.open(Context("syncer", 0))
    pair = Pair()
    [(_, codes)] = pair.coder(state={OWNER: pair.state}) or []
    emitted = hold(update={OWNER: pair.state}, coded={OWNER: codes})
    assert [item["fragments"] for _, item in emitted or []] == [[]]
    beyond = {**pair.state, "fragment": 99}
    assert hold(update={OWNER: beyond}, coded={OWNER: {**codes, "fragment": 99}}) is None


def test_what_was_given_is_taken_back_once_the_next_life_has_published() -> None:
    """A channel keeps the last item of each key, which would stay in memory."""
    pair = Pair()
    pair.merged(1)
    pair.gifts(2)
    emitted = pair.merged(2, life=2)
    copy, kept = (item for port, item in emitted if port in ("copy", "kept"))
    assert is_withdrawn(copy)
    assert (kept["version"], kept["tensors"]) == ([0, 0], {})
    back = shard(2)
    back(gradient=gradient("recover", [1, 1], pair.state["values"]))
    assert step(back, 2, 2, kept)["merged"]["momentum"] is None


def test_a_life_that_recovers_before_it_has_its_momentum_leaves_that_where_it_is() -> None:
    """If it dies again, the next one goes on with it."""
    pair = Pair()
    pair.merged(1)
    pair.merged(2)
    pair.gifts(2)
    back = shard(2)
    pair.published(back(gradient=gradient("recover", [1, 2], pair.state["values"])))
    assert not pair.state["tensors"]["momentum"].any()
    _, kept = pair.gifts(3)
    third = shard(3)
    third(gradient=gradient("recover", [1, 2], pair.state["values"]))
    assert step(third, 3, 3, kept)["state"]["tensors"]["momentum"].tobytes() != (
        np.linspace(-3, 1.5, SIZE, dtype=np.float32).tobytes()
    )


# -- beside what the home keeps ----------------------------------------------------------------------------------------


def coded_of(state: Any, **other: Any) -> Any:
    """What a neighbour would give of it."""
    coder = StateCoder(PARTS)
    coder.open(Context("syncer"))
    [(_, codes)] = coder(state={OWNER: state}) or []
    names = [name for name in codes if name.startswith(("momentum", "theta"))]
    return {"fragment": 0, "version": state["version"], "tensors": {name: codes[name] for name in names}, **other}


def back_at(version: list[int], *given: tuple[Any, Any]) -> OuterStep:
    """The next life, which has come back with a version, and got these before that."""
    back = shard(2)
    back(gradient=gradient("recover", version, former()["values"]), **({"kept": dict(given)} if given else {}))
    return back


def momentum_of(outer: OuterStep, count: int, *given: tuple[Any, Any]) -> tuple[Any, Any]:
    """The momentum after the step to that count, and the version whose momentum it continues."""
    told = outer(
        gradient=gradient("merge", [2, count], np.linspace(-count, 1.5, SIZE)),
        **({"kept": dict(given)} if given else {}),
    )
    return told["state"]["tensors"]["momentum"], told["merged"]["momentum"]


def test_of_two_the_newer_counts_whichever_comes_first() -> None:
    new, old = former(), {**former(), "version": [1, 1]}
    alone = momentum_of(back_at([1, 2]), 3, (OWNER, coded_of(new)))
    of_both = [
        momentum_of(back_at([1, 2]), 3, (OWNER, coded_of(new)), (HOME, kept_of(old))),
        momentum_of(back_at([1, 2], (HOME, kept_of(old))), 3, (OWNER, coded_of(new))),
        momentum_of(back_at([1, 2], (OWNER, coded_of(new))), 3, (HOME, kept_of(old))),
    ]
    for momentum, version in of_both:
        assert version == alone[1] == [1, 2]
        assert momentum.tobytes() == alone[0].tobytes()


def test_a_newer_one_that_comes_after_a_step_is_not_added_to_an_older_one() -> None:
    new, old = former(), {**former(), "version": [1, 1]}
    back, alone = back_at([1, 2], (HOME, kept_of(old))), back_at([1, 2], (HOME, kept_of(old)))
    momentum_of(back, 3)
    momentum_of(alone, 3)
    late, expected = momentum_of(back, 4, (OWNER, coded_of(new))), momentum_of(alone, 4)
    assert late[1] == expected[1] == [1, 1]
    assert late[0].tobytes() == expected[0].tobytes()


def test_of_one_version_the_exact_one_counts() -> None:
    state = former()
    exact = momentum_of(back_at([1, 2]), 3, (HOME, kept_of(state)))
    both = momentum_of(back_at([1, 2]), 3, (HOME, kept_of(state)), (OWNER, coded_of(state)))
    assert both[0].tobytes() == exact[0].tobytes()


def test_one_that_is_too_new_does_not_hide_one_that_fits() -> None:
    state = former()
    given = (OWNER, coded_of(state, version=[1, 9])), (HOME, kept_of(state))
    assert momentum_of(back_at([1, 2]), 3, *given)[1] == [1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 1e30])
def test_codes_that_are_wrong_are_left_aside(value: float) -> None:
    kept = coded_of(former())
    scales = np.full_like(kept["tensors"]["momentum_scales"], value)
    for tensors in ({**kept["tensors"], "momentum_scales": scales}, {**kept["tensors"], "momentum_scales": scales[:0]}):
        momentum, version = momentum_of(back_at([1, 2]), 3, (OWNER, {**kept, "tensors": tensors}))
        assert version is None
        np.testing.assert_array_equal(momentum, np.linspace(-3, 1.5, SIZE, dtype=np.float32))


def test_an_older_one_counts_as_the_part_that_is_left_of_it() -> None:
    state = former()
    momentum, version = momentum_of(back_at([1, 5]), 6, (OWNER, coded_of(state)))
    assert version == [1, 2]
    expected = MU * MU**3 * state["tensors"]["momentum"] + np.linspace(-6, 1.5, SIZE)
    np.testing.assert_allclose(momentum, expected, atol=np.abs(state["tensors"]["momentum"]).max() / 254)
