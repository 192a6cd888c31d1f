"""What a site brings to the others: pairs by seed, intervals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from isthmus.programs.wings.compare.site_effect import SiteRun, cost_of, effect_of, sheet


def summary(losses: dict[str, float | None], **more: Any) -> dict[str, Any]:
    """That of a run whose sites have these losses, and a learner each."""
    sites = [
        {"site": name, "global_last": loss, "is_final": loss is not None, "tokens": 100, "learners": [slot]}
        for slot, (name, loss) in enumerate(losses.items())
    ]
    usual = {"outcome": "done", "tokens_total": 300, "wall_seconds": 3.0, "sites": sites}
    return {**usual, **more}


def pair(seed: int, having: dict[str, Any], lacking: dict[str, Any]) -> list[SiteRun]:
    return [
        SiteRun.of(seed, "runs/x", summary(each), is_without=is_without)
        for is_without, each in ((False, having), (True, lacking))
    ]


def test_the_change_is_paired_by_seed_and_above_0_where_the_others_lose() -> None:
    runs = [
        *pair(0, {"a": 2.0, "b": 3.0, "c": 1.0}, {"a": 2.5, "b": 2.9}),
        *pair(1, {"a": 1.0, "b": 2.0, "c": 1.0}, {"a": 1.7, "b": 1.9}),
    ]
    effect = effect_of("c", [0, 1], runs, cost_of(300, 2, None))
    by_site = {each.site: each for each in effect.changes}
    assert list(by_site) == ["a", "b"]
    change = by_site["a"].change
    assert change is not None
    assert (by_site["a"].with_it, by_site["a"].without_it) == (1.5, pytest.approx(2.1))
    assert (change.mean, change.seeds) == (pytest.approx(0.6), (0, 1))
    assert change.low is not None
    assert change.high is not None
    assert change.low < 0.6 < change.high
    assert by_site["b"].change is not None
    assert by_site["b"].change.mean == pytest.approx(-0.1)


def test_one_seed_has_no_interval_and_a_run_that_is_missing_no_change() -> None:
    runs = pair(0, {"a": 2.0, "c": 1.0}, {"a": 2.5})
    (change,) = effect_of("c", [0], runs, cost_of(300, 1, None)).changes
    assert change.change is not None
    assert (change.change.mean, change.change.low) == (0.5, None)
    (half,) = effect_of("c", [0], runs[:1], cost_of(300, 1, None)).changes
    assert (half.with_it, half.without_it, half.change) == (2.0, None, None)


def test_a_site_that_keeps_its_figures_has_none() -> None:
    runs = pair(0, {"a": None, "b": 2.0, "c": 1.0}, {"a": None, "b": 2.5})
    effect = effect_of("c", [0], runs, cost_of(300, 1, None))
    assert [(each.site, each.with_it, each.change is None) for each in effect.changes] == [
        ("a", None, True),
        ("b", 2.0, False),
    ]
    assert any("a" in note and "keep" in note for note in sheet(effect).parts[0].notes)


def test_runs_that_failed_and_those_of_other_seeds_do_not_count() -> None:
    failed = SiteRun.of(1, "", summary({"a": 9.0}, outcome="failed"), is_without=False)
    runs = [*pair(0, {"a": 2.0, "c": 1.0}, {"a": 2.5}), failed, *pair(7, {"a": 8.0}, {"a": 9.0})]
    effect = effect_of("c", [0, 1], runs, cost_of(300, 2, None))
    assert (effect.failed, [run.seed for run in effect.runs]) == (1, [0, 0, 1])
    assert effect.changes[0].with_it == 2.0
    assert sheet(effect).missing


def test_all_figures_are_in_the_json_and_the_tables_have_a_row_for_each_site() -> None:
    effect = effect_of("c", [0], pair(0, {"a": 2.0, "b": 1.0, "c": 1.0}, {"a": 2.5, "b": 1.0}), cost_of(300, 1, 100.0))
    shown = sheet(effect)
    assert msgspec.json.decode(msgspec.json.encode(shown.data), type=type(effect)) == effect
    (changes,) = (part.tables[0] for part in shown.parts)
    assert [row[0] for row in changes.rows] == ["a", "b"]


def test_what_it_costs_follows_from_seeds_tokens_and_pace() -> None:
    assert cost_of(300, 2, 100.0) == (cost := cost_of(300, 2, 100.0))
    assert (cost.runs, cost.tokens, cost.seconds) == (4, 1200, 12.0)
    assert cost_of(300, 2, None).seconds is None
    assert "not known" in cost_of(300, 2, None).words
