"""Plans: bits by hand, the published figures by the settings that the documentation states, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from isthmus.ops.exchange.formats import FORMATS, MEASURED
from isthmus.programs.command.main import app
from isthmus.programs.study.lab.plan import (
    LinkLoad,
    PlannedPair,
    PlanRequest,
    chosen_of,
    links_of,
    memory_of,
    overlap_left,
    pairs_of,
)

SMALL = PlanRequest(2400.0, 4, 1.0)
"""Fragments of 100 values, one of which is merged in every step."""
BF16: dict[str, Any] = {"push": "bf16", "update": "bf16", "gradients": "bf16"}


def of(wanted: PlanRequest, program: str, merge_seconds: float = 0.0) -> LinkLoad:
    return next(links for links in links_of(wanted, merge_seconds) if links.program == program)


def test_means_and_peaks_by_hand() -> None:
    assert of(SMALL, "decoupled-diloco").up_bits == of(SMALL, "diloco").down_bits == 2400 * 32 / 24
    assert of(SMALL, "decoupled-diloco").peak_bits == pytest.approx(4 / 3 * 3200)
    assert of(SMALL, "decoupled-diloco").shard_bits == 4 * 3200
    assert of(SMALL, "data-parallel").up_bits == 2 * 3 / 4 * 2400 * 32
    assert of(SMALL, "diloco").smallest_bits is None


def test_a_fragment_goes_there_is_merged_and_comes_back_within_the_overlap() -> None:
    assert of(SMALL, "decoupled-diloco", 0.5).smallest_bits == pytest.approx(400 / 3 * 64 / 1.5)
    assert of(SMALL, "decoupled-diloco", 2.5).smallest_bits is None
    assert overlap_left(SMALL, 0.5) == 1.5
    linked = PlanRequest(2400.0, 4, 1.0, link_bits=6400.0)
    assert overlap_left(linked, 0.5) == pytest.approx(1.5 - 4 / 3)


def test_a_link_that_is_too_small_lengthens_the_interval_or_the_step() -> None:
    slow = PlanRequest(2400.0, 4, 1.0, link_bits=1600.0)
    assert (of(slow, "decoupled-diloco").wait_seconds, of(slow, "decoupled-diloco").interval) == (0.0, 48.0)
    assert of(slow, "streaming-diloco").wait_seconds == pytest.approx(400 / 3 * 64 / 1600 - 2)
    assert of(slow, "data-parallel").wait_seconds == 3600 * 32 / 1600 - 1
    assert of(slow, "diloco").wait_seconds == 2400 * 64 / 1600 / 24


def test_pairs_of_formats_and_intervals_by_hand() -> None:
    pairs = {(pair.push, pair.interval): pair for pair in pairs_of(replace(SMALL, link_bits=400.0))}
    assert pairs["float32", 24] == PlannedPair("float32", 24, 3200.0, 1.0, 8.0, None)
    assert pairs["int2", 48] == PlannedPair("int2", 48, 106.25, 64 / 2.125, 106.25 / 400, MEASURED["int2", 48])
    assert ("bf16", 48) not in pairs
    assert pairs_of(replace(SMALL, interval=30))[2].loss is None


@pytest.mark.parametrize(
    ("link_bits", "push", "update", "interval"),
    [(1e6, "float32", "float32", 24), (6400.0, "float32", "float32", 24), (900.0, "int4", "int4", 24)],
)
def test_what_auto_takes_fits_the_link(link_bits: float, push: str, update: str, interval: int) -> None:
    chosen = chosen_of(replace(SMALL, link_bits=link_bits, fragments=240))
    assert chosen is not None
    assert (chosen.push, chosen.update, chosen.interval) == ({0: push}, update, interval)


def test_on_a_thin_link_auto_lengthens_the_interval_to_half_the_link() -> None:
    chosen = chosen_of(replace(SMALL, link_bits=50.0, fragments=240))
    assert chosen is not None
    assert 24 * 2400 * FORMATS[chosen.update].bits / 24 / chosen.interval <= 25.0 * 24
    assert chosen_of(SMALL) is None


def test_a_syncer_that_is_too_slow_lengthens_the_interval() -> None:
    assert of(SMALL, "decoupled-diloco", 4.0).interval == pytest.approx(72.0)


def test_memory_by_hand() -> None:
    memory = memory_of(SMALL)
    assert (memory.island, memory.machine) == (2400 * 16, pytest.approx(2400 * 4 + 400 / 3 * 8))
    assert memory.shard == pytest.approx(2400 * 12 + 2 * 4 * 400 / 3 * 4 + 8 * 400 / 3)


def test_equal_bytes_give_at_most_twice_the_interval() -> None:
    many = PlanRequest(1e9, 1000, 1.0)
    assert 47.9 < of(many, "data-parallel").up_bits / of(many, "decoupled-diloco").up_bits < 48


def test_the_published_figures_follow_from_the_settings_that_the_documentation_states() -> None:
    eight = PlanRequest(12e9, 8, 9.5, gradient_share=0.1786, **BF16)
    assert of(eight, "data-parallel").peak_bits == pytest.approx(198e9, rel=0.01)
    assert of(eight, "decoupled-diloco").up_bits == pytest.approx(0.84e9, rel=0.01)
    four = PlanRequest(2.6e9, 4, 1.0, gradient_share=0.6, **BF16)
    assert of(four, "data-parallel").peak_bits == pytest.approx(104e9, rel=0.01)
    assert of(four, "decoupled-diloco").up_bits == pytest.approx(1.7e9, rel=0.03)
    assert ratio(four) == pytest.approx(60)
    rushed = PlanRequest(2.6e9, 4, 1.0, gradient_share=0.1488, **BF16)
    assert ratio(rushed) == pytest.approx(242, rel=0.01)
    assert ratio(rushed) * FORMATS["bf16"].bits / FORMATS["int4"].bits == pytest.approx(1000, rel=0.07)
    regions = [PlanRequest(12e9, 4, step, **BF16) for step in (4.0, 1.6)]
    assert [of(each, "decoupled-diloco").up_bits for each in regions] == pytest.approx([2e9, 5e9])
    weak = PlanRequest(107e9, 2, 9.6, link_bits=1e9, push="int4", update="int4")
    assert (of(weak, "data-parallel").wait_seconds or 0) / 9.6 == pytest.approx(357, rel=0.01)
    assert of(weak, "decoupled-diloco").interval == pytest.approx(46, abs=0.1)


def ratio(wanted: PlanRequest) -> float:
    return (of(wanted, "data-parallel").peak_bits or 0) / of(wanted, "decoupled-diloco").up_bits


@pytest.mark.slow
def test_the_command_measures_the_merge_and_tells_all(tmp_path: Path) -> None:
    options = [
        "--parameters",
        "12e9",
        "--learners",
        "4",
        "--step-seconds",
        "4",
        "--island",
        "v6e:16x16",
        "--price",
        "2",
    ]
    told = json.loads(command(*options, "--push", "int4", "--json", "--page", str(tmp_path / "page.html")).stdout)
    assert [each["program"] for each in told["programs"]][-1] == "decoupled-diloco"
    assert told["merge"]["merged"] > 0
    assert told["merge"]["seconds"] == pytest.approx(
        4 / 3 * 12e9 / 24 * (4 / told["merge"]["merged"] + 1 / told["merge"]["stepped"])
    )
    assert told["cost_per_hour"] == 4 * 256 * 2
    assert all(0.9 < each["goodput"] < 1 for each in told["programs"])
    assert all(island["fits"] for island in told["islands"])
    assert "<svg" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_the_table_tells_costs_where_there_is_a_price() -> None:
    told = command("--parameters", "1e9", "--step-seconds", "4", "--island", "v6e:2x2", "--price", "3").stdout
    columns, first, *_ = (line.split("  ") for line in told.splitlines())
    # 16 devices for 3 an hour, 4 s a step; a hair more, for failures.
    assert columns[-1].strip() == "1000 steps cost"
    assert float(first[-1]) == pytest.approx(16 * 3 * 4000 / 3600, rel=0.01)


def test_a_number_that_cannot_be_is_one_fault() -> None:
    told = command("--parameters", "nan", "--step-seconds", "1").stderr
    assert told.count("expected") == 1


@pytest.mark.slow
def test_an_island_that_is_too_small_is_said() -> None:
    told = command("--parameters", "12e9", "--step-seconds", "0.01", "--island", "v6e:2x2")
    assert "too small" in told.stdout
    assert "a fragment is away for" in told.stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--parameters", "0", "--step-seconds", "1"], "--parameters from 1"),
        (["--parameters", "nan", "--step-seconds", "1"], "--parameters from 1"),
        (["--parameters", "1e9", "--step-seconds", "-1"], "--step-seconds from"),
        (["--parameters", "1e9", "--step-seconds", "1", "--push", "int3"], "--push one of"),
        (["--parameters", "1e9", "--step-seconds", "1", "--island", "v6e:4"], "KIND:TOPOLOGY"),
        (["--parameters", "1e9", "--step-seconds", "1", "--island", "v6e:2x2", "--island", "v6e:2x2"], "one --island"),
        (["--parameters", "1e9", "--step-seconds", "1", "--overlap", "30"], "--overlap from 1"),
    ],
)
def test_impossible_parameters_are_refused(options: list[str], expected: str) -> None:
    done = command(*options)
    assert done.exit_code == 2
    assert expected in done.stderr


def command(*options: str) -> Result:
    return CliRunner().invoke(app, ["plan", *options], catch_exceptions=False, prog_name="isthmus")
