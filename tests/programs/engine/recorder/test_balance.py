"""The books of a run: counts that agree add up, counts that do not are told apart, and nothing is made to fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange.token_accounts import FATES
from isthmus.ops.step_tokens import ChangedStepTokens, FormerStepTokens
from isthmus.programs.engine.recorder.accounts import books, entries, fragment_accounts, merged_share

SECOND = 1_000_000_000


def life(slot: int, incarnation: int, accounts: list[list[int]], **more: Any) -> dict[str, Any]:
    """A learner's life as a status has it; `accounts`: [merged, overlapped, refused, lost, pending] a fragment."""
    tokens = sum(accounts[0])
    known = {"slot": slot, "incarnation": incarnation, "accounts": accounts, "tokens": tokens, "step": tokens // 10}
    return {**known, "phase": "stepping" if accounts[0][-1] else "final", **more}


def status(*lives: dict[str, Any], merged: list[list[list[int]]], **more: Any) -> dict[str, Any]:
    """A status of these lives, the last of each slot the present one; `merged`: [slot, incarnation, tokens] of each
    fragment, as shards tell it."""
    present = {each["slot"]: each for each in lives}
    former = [each for each in lives if each is not present[each["slot"]]]
    known = {"former": former, "learners": present, "merged_tokens": dict(enumerate(merged))}
    whole = dict.fromkeys(range(len(merged)), True)
    return {**known, "model_whole": whole, "merges_whole": whole, "undone_tokens": {}, "outer_steps": 7, **more}


def account(told: dict[str, Any], fragments: int = 1) -> dict[str, int]:
    """That of the first fragment."""
    found = fragment_accounts(entries(told, fragments), fragments)
    assert sum(found[0][part] for part in (*FATES, "difference")) == found[0]["trained"]
    return {name: value for name, value in found[0].items() if value and name not in ("fragment", "trained")}


def differences(told: dict[str, Any], recorded: int | None = None, batch: Any = None) -> list[dict[str, Any]]:
    """What is said of them."""
    found = entries(told, len(told["merged_tokens"]))
    listed: list[dict[str, Any]] = books(told, found, recorded, () if batch is None else batch)["differences"]
    return listed


FORMER = life(0, 1, [[50, 10, 0, 0, 40]], phase="stepping")
PRESENT = life(0, 2, [[70, 30, 0, 0, 0]])
STEPPING = {**PRESENT, "phase": "stepping"}
OTHER = life(1, 1, [[90, 10, 0, 0, 0]])
MERGED = [[0, 1, 50], [0, 2, 70], [1, 1, 90]]


def test_what_a_shard_took_with_it_is_lost_also_where_a_merge_in_the_model_is_not_known() -> None:
    told = status(FORMER, PRESENT, OTHER, merged=[[[0, 2, 60], [1, 1, 90]]], undone_tokens={0: [[0, 1, 45]]})
    told["model_whole"] = {0: False}
    # Of the 50 that the first life counts, 45 are undone; of the second the ten that no shard has told of are merged.
    assert account(told) == {"merged": 5 + 70 + 90, "overlapped": 50, "lost": 40 + 45}


def test_what_a_life_had_pending_when_it_ended_is_lost() -> None:
    told = status(FORMER, PRESENT, OTHER, merged=[MERGED])
    assert account(told) == {"merged": 210, "overlapped": 50, "lost": 40}
    assert differences(told, 7, 10) == []
    assert merged_share(fragment_accounts(entries(told, 1), 1), [300]) == pytest.approx(0.7)


def test_what_was_merged_after_the_last_report_is_not_lost() -> None:
    told = status(FORMER, PRESENT, OTHER, merged=[[[0, 1, 80], *MERGED[1:]]])
    assert account(told) == {"merged": 240, "overlapped": 50, "lost": 10}


def test_what_a_learner_took_for_refused_and_a_shard_merged_later_is_merged() -> None:
    ended = life(0, 1, [[50, 10, 40, 0, 0]], phase="stepping")
    told = status(ended, PRESENT, merged=[[[0, 1, 85], [0, 2, 70]]])
    assert account(told) == {"merged": 155, "overlapped": 40, "refused": 5}
    assert differences(told) == []


def test_what_a_shard_took_with_it_is_lost_and_not_merged() -> None:
    """The learner had heard of the version, which nobody else has."""
    told = status(OTHER, merged=[[[1, 1, 60]]], undone_tokens={0: [[1, 1, 30]]})
    assert account(told) == {"merged": 60, "overlapped": 10, "lost": 30}
    assert differences(told) == []


def test_a_learner_that_is_gone_with_its_machine_has_lost_what_it_had_pending() -> None:
    pending = life(1, 1, [[50, 10, 0, 0, 40]])
    assert account(status(pending, merged=[[[1, 1, 50]]])) == {"merged": 50, "overlapped": 10, "pending": 40}
    gone = status({**pending, "is_gone": True}, merged=[[[1, 1, 50]]])
    assert account(gone) == {"merged": 50, "overlapped": 10, "lost": 40}


def test_what_others_have_heard_of_a_life_is_trained_and_lost_or_pending() -> None:
    told = status(FORMER, STEPPING, merged=[MERGED[:2]], totals=[[0, 1, 130], [0, 2, 104], [3, 1, 8]])
    assert account(told) == {"merged": 120, "overlapped": 40, "lost": 70, "pending": 12}
    lives = books(told, entries(told, 1), None, ())["lives"]
    found = [(each["learner"], each["incarnation"], each["tokens_reported"], each["tokens_known"]) for each in lives]
    assert found == [(0, 1, 100, 130), (0, 2, 100, 104), (3, 1, 0, 8)]


def test_a_life_without_a_report_has_unknown_steps_and_loses_what_others_heard_of_once_it_is_gone() -> None:
    told = status(OTHER, merged=[[[1, 1, 90], [3, 1, 8]]], totals=[[3, 1, 12]])
    assert account(told) == {"merged": 98, "overlapped": 10, "pending": 4}
    gone = {**told, "gone": [[3, 1]]}
    assert account(gone) == {"merged": 98, "overlapped": 10, "lost": 4}
    silent = books(gone, entries(gone, 1), None, 4)["lives"][-1]
    assert (silent["steps"], silent["tokens_by_steps"], silent["has_ended"]) == (None, None, True)


# -- counts that disagree ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("merged", "difference"),
    [([[0, 1, 50], [0, 2, 71], [1, 1, 90]], -1), ([[0, 1, 50], [0, 2, 70], [1, 1, 80]], 10)],
)
def test_a_shard_that_counts_more_or_less_than_its_learner_is_told(merged: list[list[int]], difference: int) -> None:
    told = status(FORMER, PRESENT, OTHER, merged=[merged])
    assert account(told)["difference"] == difference
    (found,) = differences(told)
    assert (found["kind"], found["difference"]) == ("fates", difference)
    assert found["shard_merged"] - found["learner_merged"] == -difference


def test_where_a_recorder_has_missed_merges_the_larger_count_holds() -> None:
    told = status(OTHER, merged=[[[1, 1, 80]]], model_whole={0: False}, merges_whole={0: False})
    assert account(told) == {"merged": 90, "overlapped": 10}
    assert differences(told) == []


def test_where_only_merges_that_are_undone_were_missed_what_the_learner_counts_beyond_the_model_is_lost() -> None:
    told = status(OTHER, merged=[[[1, 1, 20]]], undone_tokens={0: [[1, 1, 30]]}, merges_whole={0: False})
    assert account(told) == {"merged": 20, "overlapped": 10, "lost": 70}
    assert differences(told) == []
    whole = {**told, "merges_whole": {0: True}}
    assert account(whole) == {"merged": 20, "overlapped": 10, "lost": 30, "difference": 40}


def test_a_learner_of_which_others_have_heard_more_than_it_says_at_the_end_is_told() -> None:
    told = status(OTHER, merged=[[[1, 1, 90]]], totals=[[1, 1, 112]])
    assert [(each["kind"], each["learner"], each["difference"]) for each in differences(told)] == [("heard", 1, 12)]


def test_a_life_that_only_a_shard_knows_of_has_trained_what_was_merged() -> None:
    told = status(OTHER, merged=[[[1, 1, 90], [5, 1, 12]]])
    assert account(told) == {"merged": 102, "overlapped": 10}
    assert differences(told) == []


def test_an_account_that_does_not_add_up_to_what_its_learner_trained_is_told() -> None:
    told = status({**OTHER, "tokens": 107}, merged=[[[1, 1, 90]]])
    (found,) = differences(told)
    assert (found["gap"], found["difference"]) == (7, 7)


def test_tokens_that_are_not_those_of_the_steps_are_told() -> None:
    told = status({**OTHER, "step": 9}, merged=[[[1, 1, 90]]])
    (found,) = differences(told, None, 10)
    assert (found["kind"], found["learner"], found["difference"]) == ("steps", 1, 10)


def test_merges_that_are_missing_in_the_file_are_told() -> None:
    told = status(OTHER, merged=[[[1, 1, 90]]])
    assert [(each["kind"], each["difference"]) for each in differences(told, 5)] == [("merges", 2)]


def test_what_nobody_has_heard_of_is_estimated_by_the_pace() -> None:
    """Two seconds at 20 ms a step of ten tokens, of a life that has ended; one that is there has none."""
    ended = {**FORMER, "reported_at": 5 * SECOND, "gone_at": 7 * SECOND, "step_ms": 20.0}
    there = {**PRESENT, "phase": "stepping", "reported_at": 5 * SECOND, "step_ms": 20.0}
    told = status(ended, there, merged=[MERGED[:2]])
    found = books(told, entries(told, 1), None, ())
    assert [each["unreported_estimate"] for each in found["lives"]] == [1000, 0]
    assert found["unreported_estimate"] == 1000
    paused = {**ended, "reported_paused": SECOND, "gone_paused": SECOND + 3 * SECOND // 2}
    told = status(paused, PRESENT, merged=[MERGED[:2]])
    assert books(told, entries(told, 1), None, {})["unreported_estimate"] == 250, "it was stopped for the rest"
    away = {**ended, "away_at_end": 2 * SECOND}
    told = status(away, PRESENT, merged=[MERGED[:2]])
    assert books(told, entries(told, 1), None, {})["unreported_estimate"] == 0, "its script made no step"
    assert found["differences"] == []


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    """Lives of up to three slots, and what shards and others say of them: anything."""
    lives, counts = [], st.integers(0, 100)
    for slot in range(draw(st.integers(1, 3))):
        for incarnation in range(1, draw(st.integers(1, 3)) + 1):
            lives.append(life(slot, incarnation, [[draw(counts) for _ in FATES]]))
    rows = st.tuples(st.integers(0, 3), st.integers(1, 3), counts).map(list)
    merged, undone, totals = (draw(st.lists(rows, max_size=5, unique_by=lambda row: (row[0], row[1]))) for _ in "mut")
    whole = {name: {0: draw(st.booleans())} for name in ("model_whole", "merges_whole")}
    return status(*lives, merged=[merged], undone_tokens={0: undone}, totals=totals, **whole)


@pytest.mark.slow
@given(histories())
def test_whatever_is_said_the_parts_and_the_difference_add_up(told: dict[str, Any]) -> None:
    account(told)
    fates = [each for each in differences(told) if each["kind"] == "fates"]
    assert len(fates) == sum(bool(each.difference or each.gap) for each in entries(told, 1))


def test_a_life_from_before_another_batch_has_the_tokens_of_then() -> None:
    """Ten tokens a step in the first life of slot 0, twenty in the second; slot 1 came later."""
    second = {**life(0, 2, [[70, 30, 0, 0, 0]]), "step": 5}
    told = status(FORMER, second, {**OTHER, "step": 5}, merged=[MERGED], totals=[])
    batch = ChangedStepTokens(20, (FormerStepTokens(((0, 1),), 10),))
    kinds = [each["kind"] for each in differences(told, batch=batch)]
    assert "steps" not in kinds
    assert kinds == [each["kind"] for each in differences(told)]
    assert [each["kind"] for each in differences(told, batch=20)] != kinds
