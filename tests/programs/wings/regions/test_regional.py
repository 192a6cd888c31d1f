"""The program of two levels, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from isthmus import Program
from isthmus.ops.recovery.hold import ShardMemory
from isthmus.programs.engine.results.changes import settings
from isthmus.programs.wings.simulation import toy_task
from isthmus.programs.wings.simulation.pytest_plugin import WorldResult, Worlds
from isthmus.programs.wings.why.why import MergeQuery, table, why
from isthmus.runtime.errors import ConfigError
from tests.effort import long
from tests.programs.family import ADAM, final_model, recorded

OUTER = {"outer_lr": 0.7, "outer_momentum": 0.5}
WHOLE = {"global_lr": 1.0, "global_momentum": 0.0}
FLOAT = {"push": "float32", "fragments": 3, "interval": 6}
NAME = "regional-diloco"


def _run(world: Worlds, program: str = NAME, *, learners: int = 4, steps: int = 96, **settings: Any) -> WorldResult:
    return world.run(Program(program, **settings), task=ADAM, learners=learners, steps=steps, jitter=0.0)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WorldResult, WorldResult]]:
    """A run of decoupled-diloco and one of two regions: four learners, three fragments, every sixth step."""
    worlds = Worlds(tmp_path_factory.mktemp("regional"))
    try:
        yield (
            _run(worlds, "decoupled-diloco", fragments=3, interval=6),
            _run(worlds, fragments=3, interval=6),
        )
    finally:
        worlds.close()


@pytest.mark.further
@pytest.mark.parametrize(
    ("exchange", "region_shards", "shards"), [(1, 1, 1), long(3, 1, 1), (1, 2, 1), long(1, 1, 3), long(2, 2, 2)]
)
def test_one_region_is_decoupled(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, exchange: int, region_shards: int, shards: int
) -> None:
    """With a global step of (1, 0), bit for bit: what a region alone gets back from above is what it has."""
    monkeypatch.setattr(ShardMemory, "is_kept", lambda *_: True)
    with recorded() as flat:
        kept = {"shards": region_shards, "keeps": "answers"}
        one = _run(world, "decoupled-diloco", quorum=4, carry=False, **kept, **FLOAT, **OUTER)
    divided = {"regions": 1, "region_shards": region_shards, "shards": shards, "exchange": exchange}
    with recorded() as two:
        region = _run(world, quorum=4, keeps="answers", regions_push="float32", **divided, **FLOAT, **OUTER, **WHOLE)
    assert min(map(len, flat.answers.values())) > 10
    assert flat.answers == two.answers
    # Both levels are recorded; the global versions are those of the region but for the rounding of G - (G - Theta).
    for p, published in flat.updates.items():
        assert list(dict.fromkeys(each for each in two.updates[p] if each in set(published))) == published
    ours, theirs = final_model(region.folder), final_model(one.folder)
    assert all(np.allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-7) for name in theirs)


def test_two_regions_train_and_nothing_waits(plain: tuple[WorldResult, WorldResult]) -> None:
    flat, two = plain
    assert (flat.waits, two.waits) == (0, 0)
    assert two.summary["contributors_mean"] == 2.0
    assert two.summary["books"]["differences"] == []
    assert two.summary["tokens_lost"] == two.summary["tokens_pending"] == 0
    assert two.summary["tokens_merged"] > 0.75 * two.summary["tokens_total"]
    assert two.eval_loss < 0.75 * two.summary["eval_loss_initial"]
    sent = {edge["source"]: edge["items"] for edge in two.summary["edges"]}
    # Two learners a region, every second merge: the four learners of two regions answer four times as often.
    assert sent["regional-step.answer"] < 0.35 * sent["fragment-send.answer"]


@pytest.mark.parametrize(("region_shards", "shards"), [long(1, 1), (3, 2)])
def test_shards_of_both_levels_keep_sums(
    world: Worlds, plain: tuple[WorldResult, WorldResult], region_shards: int, shards: int
) -> None:
    divided = {"region_shards": region_shards, "shards": shards}
    two = _run(world, fragments=3, interval=6, keeps="sums", **divided)
    assert two.waits == 0
    assert two.summary["books"]["differences"] == []
    assert two.summary["tokens_lost"] == two.summary["tokens_pending"] == 0
    assert two.summary["tokens_merged"] > 0.75 * two.summary["tokens_total"]
    assert two.eval_loss < 1.05 * plain[1].eval_loss
    items = {edge["source"]: edge["items"] for edge in two.summary["edges"]}
    for sender in ("fragment-send", "regional-step"):
        # Of a region a second answer may be about the same work, and is not asked for.
        assert 0.8 * items[f"{sender}.answer"] <= items[f"{sender}.values"] <= items[f"{sender}.answer"]


def test_by_default_a_level_keeps_sums_where_answers_are_many() -> None:
    def kept(learners: int, **settings: Any) -> tuple[bool, bool]:
        graph = toy_task.graph_of(Program(NAME, fragments=4, **settings), learners=learners, steps=8, seed=0)
        names = {node.name for node in graph.nodes}
        return "region-ballot" in names, "ballot" in names

    assert kept(8) == (False, False)
    assert kept(80) == (True, False)
    assert kept(80, regions=40) == (False, True)
    assert kept(4096, regions=40) == (True, True)
    assert kept(4096, regions=40, keeps="answers") == (False, False)
    assert kept(2, keeps="sums") == (True, True)


def test_a_merge_is_told_by_region(world: Worlds) -> None:
    result = _run(world, fragments=2, interval=6, steps=48, regions_push="auto")
    # The command of a run writes it.
    (result.folder / "graph.json").write_text('{"roles": [{"name": "learner"}, {"name": "region"}]}')
    facts = why(result.folder, MergeQuery(0)).merge
    assert facts.by == "region"
    assert table(facts)["region"] == ["0", "1"]
    assert "of region 1 int4" in settings({**(facts.asked or {}), "push": [[0, "bf16"], [1, "int4"]]}, facts.by)


@pytest.mark.parametrize("regions", [1, long(3)])
def test_other_numbers_of_regions(world: Worlds, regions: int) -> None:
    result = _run(world, fragments=2, interval=6, regions=regions, learners=3, steps=48)
    assert result.summary["books"]["differences"] == []
    assert result.summary["tokens_lost"] == 0
    assert result.summary["contributors_mean"] == regions


@pytest.mark.parametrize(
    ("settings", "setting"),
    [({"regions": 5}, "regions"), ({"regions": 0}, "regions"), ({"quorum": 3}, "quorum"),
     ({"regions_quorum": 3}, "regions_quorum"), ({"shards": 4, "fragments": 3}, "shards"),
     ({"region_shards": 4, "fragments": 3}, "region_shards"), ({"overlap": 30, "interval": 6}, "overlap")],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(world: Worlds, settings: dict[str, int], setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"program\.{setting} of {NAME}"):
        _run(world, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"site_weight": "equal"},
        {"exchange": "auto"},
    ],
)
def test_what_only_one_level_has_is_refused_by_name(world: Worlds, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"program\.{next(iter(settings))}"):
        _run(world, **settings)


def _in_codes(world: Worlds, whole: WorldResult, settings: dict[str, Any]) -> WorldResult:
    """A run with these settings, which loses nothing and learns nearly as much as one without codes."""
    coded = _run(world, fragments=3, interval=6, **settings)
    assert coded.waits == 0
    assert coded.summary["books"]["differences"] == []
    assert coded.summary["tokens_lost"] == coded.summary["tokens_pending"] == 0
    assert coded.eval_loss < 1.1 * whole.eval_loss
    return coded


@pytest.mark.parametrize(
    "formats", [long({"regions_update": "int4"}), {"regions_update": "auto", "regions_push": "auto"}]
)
def test_global_versions_travel_in_codes(
    world: Worlds, plain: tuple[WorldResult, WorldResult], formats: dict[str, str]
) -> None:
    coded = _in_codes(world, plain[1], formats)
    assert coded.summary["contributors_mean"] == 2.0


@pytest.mark.further
@pytest.mark.parametrize("settings", [{"update": "int4", "region_shards": 2}, long({"push": "auto", "update": "auto"})])
def test_versions_of_a_region_travel_in_codes(
    world: Worlds, plain: tuple[WorldResult, WorldResult], settings: dict[str, Any]
) -> None:
    whole = plain[1]
    coded = _in_codes(world, whole, settings)
    sizes = [
        sum(edge["bytes"] for edge in run.summary["edges"] if edge["source"] == "regional-step.update")
        for run in (coded, whole)
    ]
    assert sizes[0] < 0.75 * sizes[1] or "auto" in settings.values()


def test_what_crosses_between_regions_is_one_transfer_a_region(plain: tuple[WorldResult, WorldResult]) -> None:
    check_crossing(*plain, least=2.0)


@pytest.mark.long
def test_with_more_learners_a_region_still_less_crosses(world: Worlds) -> None:
    flat = _run(world, "decoupled-diloco", learners=8, fragments=3, interval=6)
    check_crossing(flat, _run(world, learners=8, fragments=3, interval=6), least=4.0)


def check_crossing(flat: WorldResult, two: WorldResult, *, least: float) -> None:
    """Answers and versions of the far half of the learners, or of the far region, in the same formats."""
    sizes = [{(edge["source"], edge["target"]): edge["bytes"] for edge in run.summary["edges"]} for run in (flat, two)]
    ours = [("fragment-send.answer", "merge.answer"), ("outer-step.update", "inner-step.update")]
    theirs = [("regional-step.answer", "merge.answer"), ("outer-step.update", "regional-step.above")]
    crossed = [sum(sizes[0][name] for name in ours) / 2, sum(sizes[1][name] for name in theirs) / 2]
    assert crossed[0] >= least * crossed[1]
    assert two.summary["regions"] == 2
    assert flat.summary["regions"] == 0
    assert flat.summary["per_region"] == []
    rows = two.summary["per_region"]
    assert [row["region"] for row in rows] == [0, 1]
    assert sum(row["answer_bytes_sent"] for row in rows) == sizes[1]["regional-step.answer", "merge.answer"]
    tokens = {row["learner"]: row["tokens"] for row in two.summary["per_learner"]}
    assert [row["tokens"] for row in rows] == [sum(tokens[slot] for slot in tokens if slot % 2 == at) for at in (0, 1)]
    assert all(row["rounds"] > row["answers"] > 4 for row in rows)
