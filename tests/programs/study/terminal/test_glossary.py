"""The glossary has every word of the live table, and README shows the table as it is."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from isthmus.programs.study.terminal import figures
from isthmus.runtime.cores.membership_messages import SILENT
from tests.programs.glossary import GLOSSARY, ROOT, unknown

FULL: Final[dict[str, Any]] = {
    "outer_steps": 3,
    "contributors_mean": 2.0,
    "merged_share": 0.5,
    "goodput": 0.5,
    "losses_not_finite": 1,
    "epochs": {"0": 2},
    "eval_loss": 2.0,
    "eval_loss_initial": 5.0,
    "paths": 2,
    "snapshots": {"store": {"number": 1, "url": "s3://b", "error": ""}},
    "hosts": [{"name": "learner/0", "phase": "stepping", "state": "away", "incarnation": 1, "relayed": ["syncer/0"]}],
    "learners": {0: {"phase": "stepping", "incarnation": 1, "step": 1, "away": 5_000_000_000}},
}


def test_the_glossary_is_in_order_and_has_each_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (?!meaning|---)", GLOSSARY.read_text(), re.MULTILINE)
    assert rows == sorted(rows, key=str.lower)
    assert len(rows) == len(set(rows))


def test_every_name_of_the_live_table_is_in_the_glossary() -> None:
    columns = {str(column.header) for column in figures.learners_table(FULL, 200).columns}
    assert {"path", "away", *figures.COLUMNS} <= columns
    names = {name for name, _ in figures.shown(FULL, 1)}
    assert {"contributors", "relayed", "epoch", "not finite"} <= names
    assert (
        unknown({*columns, *names, "interval", "overlap", "slow", *SILENT, *figures.RETIRED, *figures.MEANINGS})
        == set()
    )


def test_the_table_that_the_readme_shows_looks_like_the_present_one() -> None:
    (shown,) = re.findall(r"^```\ndecoupled-diloco  training .*?^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    lines = shown.splitlines()
    (head,) = (line for line in lines if line.startswith("learner "))
    assert re.split(r" {2,}", head) == ["learner", "state", "life", *figures.COLUMNS]
    assert figures.legend(figures.MEANINGS, max(map(len, lines))).plain == lines[-2]


@pytest.mark.parametrize("width", [20, 60, 118, 300])
def test_a_legend_has_whole_meanings_in_one_line(width: int) -> None:
    line = figures.legend(figures.MEANINGS, width).plain
    parts = dict(part.split(": ") for part in line.split("; ") if part)
    assert len(line) <= width
    assert all(figures.MEANINGS[name] == meaning for name, meaning in parts.items())
    assert (len(parts) == len(figures.MEANINGS)) == (width == 300)
    assert figures.legend((), width).plain == ""
