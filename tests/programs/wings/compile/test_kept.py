"""Figures are found again for the same program, options and compiler, and for no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.programs.wings.compile.figures import KeptFigures, digest, target
from tests.programs.wings.compile.made import FIGURES, REFUSED

TARGET = target("v6e:2x2")
VERSIONS = {"jax": "0.10.2", "libtpu": "0.0.42.1"}
KEY = digest("module", TARGET, VERSIONS)


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    kept, folder = KeptFigures(tmp_path / "ahead"), tmp_path / "ahead"
    assert kept.find(KEY) is None
    for figures in (FIGURES, REFUSED):
        kept.keep(KEY, figures)
        assert KeptFigures(folder).find(KEY) == figures


@pytest.mark.parametrize(
    "other",
    [
        digest("another", TARGET, VERSIONS),
        digest("module", target("v6e:4x1"), VERSIONS),
        digest("module", replace(TARGET, options={}), VERSIONS),
        digest("module", TARGET, VERSIONS | {"libtpu": "0.0.43"}),
    ],
)
def test_of_anything_else_there_are_other_figures(other: str) -> None:
    assert other != KEY


@pytest.mark.parametrize("content", ["", "{", '{"compiled": {"memory": 3}}', "[]"])
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / f"{KEY}.json").write_text(content)
    kept = KeptFigures(tmp_path)
    assert kept.find(KEY) is None
    kept.keep(KEY, FIGURES)
    assert kept.find(KEY) == FIGURES


def test_a_folder_that_takes_nothing_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for kept in (KeptFigures(tmp_path / "file"), KeptFigures(None)):
        kept.keep(KEY, FIGURES)
        assert kept.find(KEY) is None
