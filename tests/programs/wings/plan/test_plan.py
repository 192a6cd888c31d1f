"""Plans: bits by hand, the published figures by the settings that the documentation states, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from isthmus.ops.exchange.formats import FORMATS, MEASURED
from isthmus.programs.engine.recorder.graph_parts import roster_counts
from isthmus.programs.engine.recorder.run_references import resolving
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.reference import resolve
from isthmus.programs.engine.request.run_settings import SNAPSHOT_SECONDS_DEFAULT
from isthmus.programs.job import TensorSpec
from isthmus.programs.wings.plan.home_plan import STANDING_BYTES, home_of
from isthmus.programs.wings.plan.plan import (
    UTILISATIONS,
    LinkLoad,
    PlannedPair,
    PlanRequest,
    Proposal,
    chosen_of,
    links_of,
    memory_of,
    overlap_left,
    pairs_of,
    proposal_of,
    sent_of,
)
from isthmus.programs.wings.simulation import toy_task
from isthmus.programs.wings.simulation.virtual_run import VirtualPace
from isthmus.runtime.clock import milliseconds
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.world import World
from isthmus.runtime.supervision.flows import RunFlows
from tests.command_line import app

SMALL = PlanRequest(2400.0, 4, 1.0)
"""Fragments of 100 values, one of which is merged in every step."""
BF16: dict[str, Any] = {"push": "bf16", "update": "bf16", "gradients": "bf16"}


def of(wanted: PlanRequest, program: str, merge_seconds: float = 0.0) -> LinkLoad:
    return next(links for links in links_of(wanted, merge_seconds) if links.program == program)


def test_means_and_peaks_by_hand() -> None:
    assert of(SMALL, "decoupled-diloco").up_bits == of(SMALL, "diloco").down_bits == 2400 * 32 / 24
    assert of(SMALL, "decoupled-diloco").peak_bits == pytest.approx(4 / 3 * 3200)
    evaluated = 20 / (1000 / 24)  # Twenty times in so many sweeps.
    assert of(SMALL, "decoupled-diloco").shard_bits == pytest.approx(3200 * (4 + evaluated + 2))
    often = replace(SMALL, step_seconds=0.1)  # Of 6.25 versions one is taken, with momentum.
    assert of(often, "decoupled-diloco").shard_bits == pytest.approx(32_000 * (4 + evaluated + 2 * 2.4 / 15))
    assert of(often, "streaming-diloco").shard_bits == pytest.approx(32_000 * (4 + 2 + 2))
    coded = replace(SMALL, push="int4", update="int4")
    assert of(coded, "decoupled-diloco").shard_bits == pytest.approx(100 * (4 * 4.125 + evaluated * 32 + 3 * 32))
    assert of(replace(coded, push="float32", learners=40), "decoupled-diloco").shard_bits == 40 * 3200
    both = replace(SMALL, shards=2)  # With the momentum of the other one in codes, and where they are coded its values.
    near = 32 + 8.125
    assert of(both, "decoupled-diloco").shard_bits == pytest.approx(100 * ((4 + evaluated + 2) * 32 + near) / 2)
    assert of(replace(both, steps=24), "decoupled-diloco").shard_bits == pytest.approx(100 * (7 * 32 + 32) / 2)
    near = 4.125 + 2 * 8.125
    each = of(replace(coded, shards=2), "decoupled-diloco").shard_bits
    assert each == pytest.approx(100 * (4 * 4.125 + evaluated * 32 + 3 * 32 + near) / 2)
    many = replace(coded, push="float32", learners=40, shards=2)
    assert of(many, "decoupled-diloco").shard_bits == pytest.approx(100 * (40 * 32 + near) / 2)
    assert of(both, "streaming-diloco").shard_bits == of(SMALL, "streaming-diloco").shard_bits / 2  # type: ignore[operator]
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
    assert of(slow, "data-parallel").wait_seconds == 3600 * 32 / 1600
    assert of(replace(slow, gradient_share=1.0), "data-parallel").wait_seconds == 3600 * 32 / 1600 - 1
    assert of(slow, "diloco").wait_seconds == 2400 * 64 / 1600 / 24


def test_each_way_takes_the_latency() -> None:
    slow = replace(SMALL, link_bits=1600.0)
    far = replace(slow, latency_seconds=0.25)
    for program, more in (("data-parallel", 6 * 0.25), ("diloco", 2 * 0.25 / 24), ("streaming-diloco", 2 * 0.25)):
        without, within = of(slow, program).wait_seconds, of(far, program).wait_seconds
        assert without is not None
        assert within == pytest.approx(without + more)
    assert overlap_left(far, 0.5) == overlap_left(slow, 0.5) - 0.5
    assert of(far, "decoupled-diloco").wait_seconds == 0


def test_gradients_that_cross_after_a_step_have_no_link_without_a_wait() -> None:
    after = of(SMALL, "data-parallel")
    assert (after.peak_bits, after.smallest_bits) == (None, None)
    assert all(after.utilisation_bits)
    far = of(replace(SMALL, latency_seconds=0.1), "data-parallel").utilisation_bits
    assert [bits is None for bits in far] == [False, True, True, True, True]  # Six ways take .6 s, .25 are allowed.


def test_data_parallel_is_proposed_where_its_steps_hardly_wait_and_else_what_auto_takes() -> None:
    assert proposal_of(SMALL, 0.0) is None
    wide = proposal_of(replace(SMALL, link_bits=1e8), 0.0)
    assert wide is not None
    assert (wide.program, wide.interval) == ("data-parallel", None)
    assert wide.utilisation == pytest.approx(1 / (1 + 3600 * 32 / 1e8))
    thin = replace(SMALL, link_bits=900.0, fragments=240)
    assert proposal_of(thin, 0.0) == Proposal("decoupled-diloco", "int4", "int4", 24, 2, 1.0)
    assert chosen_of(thin) is not None


def test_losses_of_a_small_model_stand_beside_small_models_alone() -> None:
    assert [pair.loss for pair in pairs_of(replace(SMALL, parameters=12e9)) if pair.loss is not None] == []


def test_links_by_utilisation_are_those_on_which_steps_wait_so_long() -> None:
    wanted = replace(SMALL, gradient_share=0.5)
    for program in ("data-parallel", "diloco", "streaming-diloco"):
        for share, bits in zip(UTILISATIONS, of(wanted, program, 0.01).utilisation_bits, strict=True):
            assert bits
            wait = of(replace(wanted, link_bits=bits), program, 0.01).wait_seconds
            assert wait == pytest.approx(1 / share - 1)
    assert set(of(SMALL, "decoupled-diloco").utilisation_bits) == {0.0}
    assert of(SMALL, "diloco", 1.0).utilisation_bits[1:] == (None,) * 4
    assert of(SMALL, "streaming-diloco", 30.0).utilisation_bits[0] is None


TABLE_4: dict[tuple[float, float, int], dict[str, tuple[float, ...]]] = {
    (1e9, 0.1, 8): {
        "data-parallel": (86.8, 152.6, 184.2, 222.3, 569.0),
        "diloco": (1.4, 6.2, 13.3, 23.3, 86.8),
        "streaming-diloco": (1.4, 4.3, 6.2, 9.1, 11.0),
    },
    (10e9, 0.8, 16): {
        "data-parallel": (104.8, 222.3, 222.3, 268.3, 471.5),
        "diloco": (1.7, 7.5, 16.0, 33.9, 104.8),
        "streaming-diloco": (1.7, 3.6, 5.2, 6.2, 7.5),
    },
    (100e9, 4.9, 36): {
        "data-parallel": (184.2, 323.8, 390.7, 390.7, 471.5),
        "diloco": (3.0, 11.0, 23.3, 49.4, 184.2),
        "streaming-diloco": (1.7, 3.6, 4.3, 5.2, 5.2),
    },
}
"""Gbit/s for a compute utilisation of 50 to 99 %, by parameters, step and fragments of three layers, H = 100: Table 4
of Streaming DiLoCo (arXiv 2501.18512), with overlap where it streams."""


@pytest.mark.parametrize("case", TABLE_4)
def test_the_published_links_by_utilisation(case: tuple[float, float, int]) -> None:
    """One step of the published grid is a factor of 1.21. Their all-reduce of two passes a link once, a syncer's answer
    and update pass it twice in turn."""
    parameters, step, fragments = case
    wanted = PlanRequest(
        parameters, 2, step, interval=100, fragments=fragments, overlap=1, gradient_share=2 / 3, **BF16
    )
    ratios = {
        program: [ours / 1e9 / theirs for ours, theirs in zip(of(wanted, program).utilisation_bits, row, strict=True)]
        for program, row in TABLE_4[case].items()
        if None not in of(wanted, program).utilisation_bits
    }
    assert all(0.8 < ratio < 1.25 for ratio in ratios["data-parallel"][:4])
    assert all(1.8 < ratio < 2.7 for ratio in ratios["diloco"][:4])
    assert all(2.2 < ratio < 5.0 for ratio in ratios["streaming-diloco"])


LARGE = toy_task.Toy("LARGE", tuple(TensorSpec(f"layer{i}", (10_000, 4), "float32") for i in range(8)))
"""Fragments of 160 kB, beside which what is said about them is little."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("decoupled-diloco", {"push": "float32", "update": "float32"}),
        ("decoupled-diloco", {"push": "int4", "update": "int4", "shards": 2}),
        ("streaming-diloco", {"push": "int4", "update": "int8", "overlap": 2}),
        ("data-parallel", {}),
    ],
)
def test_a_run_sends_what_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(toy_task, "LARGE", LARGE, raising=False)
    steps, values = 240, 8 * 40_000
    formats = {key: settings[key] for key in ("push", "update") if key in settings}
    if formats:
        settings = {"interval": 12, "fragments": 8, "outer_lr": 0.7, "outer_momentum": 0.3, **settings}
    graph = toy_task.graph_of(Program(name, **settings), learners=4, steps=steps, seed=0, task=LARGE)
    pace = VirtualPace(step_ms=1000.0)
    world = World(
        lower(graph),
        roster_counts(graph, 4),
        seed=0,
        resolve=resolving(tmp_path, resolve, SNAPSHOT_SECONDS_DEFAULT),
        duration=pace.duration,
        delay=lambda edge, size: milliseconds(1),
    )
    world.run(lambda: ("recorder/0", "record") in world.ended, seconds_max=3600.0)
    assert world.hosts[Replica("recorder", 0)].published["record"]["error"] is None
    moved = RunFlows.of((replica, host.flows) for replica, host in world.hosts.items()).edges
    working, home = 0, 0
    for index, edge in enumerate(graph.edges):
        is_home = {edge.source.node.role, edge.target.node.role} & {"recorder", "evaluator"}
        working += 0 if is_home else moved[index].size_bytes if index in moved else 0
        home += moved[index].size_bytes if is_home and index in moved else 0
    shards = int(settings.get("shards", 1))
    wanted = PlanRequest(values, 4, 1.0, interval=12, fragments=8, shards=shards, steps=steps, **formats)
    planned = sent_of(wanted, of(wanted, name))
    assert working == pytest.approx(planned.working, rel=0.05)
    assert planned.home is None or home == pytest.approx(planned.home, rel=0.05)


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
    beside = 2 * 4 * 400 / 3 * 4 + 8 * 400 / 3
    assert memory.shard == pytest.approx(2400 * 12 + beside)
    assert memory_of(replace(SMALL, steps=24)).shard == pytest.approx(2400 * 8 + beside)  # Without a momentum.
    assert memory_of(replace(SMALL, update="int4")).shard == pytest.approx(2400 * 12 + beside)
    assert memory_of(replace(SMALL, update="int4", steps=24)).shard == pytest.approx(2400 * 8 + beside)
    codes, beside = 8.125 / 8, memory_of(replace(SMALL, shards=2)).shard - 1200 * (12 + 4 + 8.125 / 8)
    assert 0 < beside < 2 * 4 * 400 / 3 * 4 + 8 * 400 / 3  # As many answers at most.
    for update, steps, kept in (("float32", 24, 12), ("int4", 10**5, 16 + 2 * codes), ("int4", 24, 12 + codes)):
        planned = memory_of(replace(SMALL, shards=2, update=update, steps=steps)).shard
        assert planned == pytest.approx(1200 * kept + beside)


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


def test_what_the_home_of_7_billion_parameters_takes_by_hand() -> None:
    home = home_of(7e9, 16, 24, "float32", sweep_seconds=96.0, sweeps=100.0)
    assert home.recorder_bits == pytest.approx(7e9 * 64 / 96)  # Values and momentum, once a version.
    assert home.evaluator_bits == pytest.approx(20 / 100 * 7e9 * 32 / 96)
    assert home_of(7e9, 16, 24, "int4", sweep_seconds=1.5, sweeps=10.0).evaluator_bits == pytest.approx(7e9 * 32 / 1.5)
    assert home_of(7e9, 16, 24, "int4", sweep_seconds=1.5, sweeps=10.0).recorder_bits == pytest.approx(7e9 * 96 / 15)
    assert home.recorder_bytes + home.daemon_bytes < 0.02 * 28e9
    assert home.evaluator_bytes == 2 * 28e9
    many = home_of(7e9, 1024, 24, "float32", sweep_seconds=96.0, sweeps=100.0)
    assert many.report_bits == 64 * home.report_bits
    assert many.recorder_bytes - home.recorder_bytes == pytest.approx(1008 * 24 * STANDING_BYTES)
