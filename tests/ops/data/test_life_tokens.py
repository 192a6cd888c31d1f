"""The tokens of a step that a resume has changed: each life has those of its time."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.ops.data.life_tokens import tokens_of_life
from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.token_accounts import FragmentAccount
from isthmus.ops.step_tokens import AtMost, ChangedStepTokens, FormerStepTokens, tokens_now
from isthmus.ops.syncer.merge import Merge

TWICE = ChangedStepTokens(
    32,
    (FormerStepTokens(((0, 2), (1, 1)), 8), FormerStepTokens(((0, 3), (1, 1), (2, 1)), (16, 24))),
)
"""Slot 0 had two lives with 8 tokens a step, then one with 16; slot 2 came when there were 16 or 24."""


@pytest.mark.parametrize(
    ("slot", "life", "tokens"),
    [(0, 1, 8), (0, 2, 8), (0, 3, 16), (0, 4, 32), (1, 1, 8), (1, 2, 32), (2, 1, 24), (2, 2, 32), (9, 1, 32)],
)
def test_a_life_has_the_tokens_of_its_time(slot: int, life: int, tokens: int) -> None:
    assert tokens_of_life(TWICE, slot, life) == tokens


def test_without_a_change_every_life_has_the_same() -> None:
    assert [tokens_of_life(each, 1, 7) for each in (8, (8, 16), AtMost(8))] == [8, 16, AtMost(8)]
    assert (tokens_now(TWICE), tokens_now((8, 16))) == (32, (8, 16))


def test_messages_are_of_lives_since_the_change() -> None:
    assert schemas.tokens_of("steps", TWICE, "begin") == schemas.tokens_of("steps", 32, "begin")
    mixed = ChangedStepTokens((8, 16), TWICE.before)
    parts = [Fragment(0, (Unit("w", 0, 4, (4,)),))]
    assert schemas.region_answer(parts, mixed) == schemas.region_answer(parts, AtMost(16))


def answer(incarnation: int, former: list[list[int]], begin: int, steps: int, tokens: int) -> Any:
    """Of slot 0, on the version that it held when it was cut off."""
    told = {"slot": 0, "incarnation": incarnation, "fragment": 0, "kind": "merge", "base": [1, 0], "former": former}
    return {**told, "begin": begin, "end": begin + tokens, "steps": steps, "positions": [[0, 4]], "state": None}


@pytest.mark.parametrize(
    ("former", "tokens", "is_refused"),
    [
        ([[3, 0, 48, 3]], 64, False),  # Three steps of 16 before the cut, two of 32 since.
        ([[3, 0, 96, 3]], 64, True),  # The former life cannot have made 32 a step.
        ([[2, 0, 24, 3]], 64, False),  # Of a life before that, with 8.
    ],
)
def test_work_from_before_the_change_is_merged_with_the_steps_of_then(
    former: list[list[int]], tokens: int, *, is_refused: bool
) -> None:
    parts = (Fragment(0, (Unit("w", 0, 4, (4,)),)),)
    merge = Merge(parts, step_tokens=TWICE, method="average", lr=1.0, momentum=0.0)
    merge._accounts[0] = FragmentAccount((1, 0), 8)
    turn: Any = {"fragment": 0, "kind": "merge", "interval": 8}
    assert merge._refusal(turn, answer(4, former, 0, 2, tokens)) == ("inconsistent" if is_refused else None)
