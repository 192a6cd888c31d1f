"""`make bench` compares shares of one kind of processor, and of no other."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench import ratios
from tests.bench.place import kind_of
from tests.bench.ratios import KEPT, Share, is_worse, keep, kept_for

CPUINFO = """processor\t: 0
cpu family\t: 25
model\t\t: {model}
model name\t: AMD EPYC
stepping\t: 1
cache size\t: 512 KB
processor\t: 1
cpu family\t: 26
"""
MILAN = "AMD EPYC, cpu family 25, model 1, stepping 1, cache size 512 KB, 2 cores"


def test_a_kind_is_more_than_a_name() -> None:
    assert kind_of(CPUINFO.format(model=1), 2) == MILAN
    assert kind_of(CPUINFO.format(model=17), 2) != MILAN
    assert kind_of("", 4).endswith(", 4 cores")


def test_shares_are_kept_by_kind_and_a_kind_that_is_not_there_has_none(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    assert kept_for(MILAN, kept) == {"shares": {}}
    keep(MILAN, {"commit": "a", "shares": {"hop": 0.5}}, kept)
    keep("another", {"commit": "b", "shares": {"hop": 0.9}}, kept)
    assert kept_for(MILAN, kept)["shares"] == {"hop": 0.5}
    assert set(json.loads(kept.read_text())) == {MILAN, "another"}
    slow = Share("hop", 1.0, 2.0, "us", 0.46)
    assert not is_worse(slow, kept_for(MILAN, kept)["shares"])
    assert is_worse(slow, kept_for("another", kept)["shares"])
    assert not is_worse(slow, kept_for("a third", kept)["shares"])


def test_what_is_in_the_tree_is_by_kind() -> None:
    assert all({"commit", "shares"} <= set(each) for each in json.loads(KEPT.read_text()).values())
    assert ratios.KEPT == KEPT
