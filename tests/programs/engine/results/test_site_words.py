"""The sites of a run in words: figures that a site keeps, and files that are of another version or damaged."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.programs.engine.results import site_words

TOLD: dict[str, Any] = {
    "site": "alpha",
    "learners": [0, 2],
    "digest": "00112233445566778899aabbccddeeff",
    "bytes": 4000,
    "data_tokens": 1000,
    "same_data": ["beta"],
    "tokens": 2500,
    "epochs": 2.5,
    "told": True,
    "is_final": True,
    "global_first": 5.5,
    "global_last": 2.0,
    "own_last": 1.75,
    "global_metrics": {"loss/code": 3.0, "odd": None},
    "own_metrics": {"loss/code": 2.5},
}


def test_the_difference_is_that_of_its_own_last_model_minus_the_global_one() -> None:
    (row,) = site_words.rows({"sites": [TOLD]})
    assert row.gap == -0.25
    assert site_words.signed(row.gap) == "-0.250"
    assert row.learners == 2
    assert row.metrics == (("loss/code", 3.0, 2.5), ("odd", None, None))


def test_a_line_has_the_figures_that_there_are() -> None:
    ((keyword, text),) = site_words.lines({"sites": [TOLD]})
    assert keyword == "site alpha"
    for figure in ("5.500", "2.000", "1.750", "-0.250", "beta", "2.5"):
        assert figure in text
    ((_, text),) = site_words.lines({"sites": [{"site": "alpha", "tokens": 5}]})
    assert "->" not in text


def test_what_a_site_keeps_is_not_told() -> None:
    kept = {**TOLD, "told": False, "global_first": None, "global_last": None, "own_last": None}
    (row,) = site_words.rows({"sites": [kept]})
    assert (row.loss(row.global_last), row.gap) == (site_words.NOT_TOLD, None)
    ((_, text),) = site_words.lines({"sites": [kept]})
    assert site_words.NOT_TOLD in text


@pytest.mark.parametrize("sites", [None, 3, "site", [3], [{}], [{"learners": 3, "same_data": 1, "own_metrics": []}]])
def test_whatever_a_file_has_there_it_is_read(sites: Any) -> None:
    rows = site_words.rows({"sites": sites})
    assert all(row.tokens is None for row in rows)
    assert all(text for _, text in site_words.lines({"sites": sites}))


def test_a_run_without_sites_has_none() -> None:
    assert site_words.rows({}) == []
