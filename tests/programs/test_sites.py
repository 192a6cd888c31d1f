"""Whole runs whose learners train on data of their sites: their figures, and that nothing else is another."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from isthmus.ops.data.site_terms import SiteTerms
from isthmus.ops.island.contract import Unevaluated
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.site_evaluation import SiteEvaluation
from isthmus.programs.engine.results import site_words
from isthmus.programs.engine.results.run_files import summary_of
from isthmus.programs.loop_task import LoopTask, ToldModel
from isthmus.programs.wings.report.page import write_report
from isthmus.programs.wings.simulation.pytest_plugin import WorldResult, Worlds
from isthmus.runtime.sim.faults import Kill
from tests.ops.bodies import Context, SmallTask, fragments_of
from tests.programs.family import ADAM, recorded

SITE = SiteTerms("00112233445566778899aabbccddeeff", bytes=40_000, tokens=10_000)
STEPS = 120


def _run(world: Worlds, **terms: Any) -> WorldResult:
    return world.run(task=replace(ADAM, evaluation=1, **terms), learners=2, steps=STEPS, jitter=0.0)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run without a site, that with one, and what was published and answered in each."""
    worlds, made = Worlds(tmp_path_factory.mktemp("sites")), []
    for terms in ({}, {"site": SITE}):
        with recorded() as record:
            made.append((_run(worlds, **terms), record))
    yield made
    worlds.close()


@pytest.mark.parametrize(("site", "count"), [(SITE, 1), (None, 0)])
def test_the_learner_of_a_loop_tells_of_its_site_whether_its_script_evaluates_or_not(site: Any, count: int) -> None:
    body = InnerStep(SmallTask(), fragments=fragments_of(SmallTask(), 2))
    body.open(Context())
    for judge in (None, Unevaluated()):
        loop = LoopTask(ToldModel("model.json"), tokens_per_batch=1, own_judge=cast(Any, judge), site=site)
        own = [each for each in loop.companions(body._boundary()) if isinstance(each, SiteEvaluation)]
        assert len(own) == count
        assert all(each.reported()["site"]["tokens"] == SITE.tokens for each in own)


@pytest.mark.further
@pytest.mark.slow
def test_the_bits_of_a_run_are_the_same_with_and_without(ran: Any) -> None:
    (without, one), (with_site, other) = ran
    assert one.updates == other.updates
    assert one.answers == other.answers
    assert without.eval_loss == with_site.eval_loss
    assert without.summary["sites"] == []


@pytest.mark.slow
def test_the_summary_has_the_site_with_its_data_and_the_losses_of_both_models(ran: Any) -> None:
    summary = ran[1][0].summary
    (site,) = summary["sites"]
    assert (
        site.items()
        >= {
            "site": "local",
            "learners": [0, 1],
            "digest": SITE.digest,
            "bytes": SITE.bytes,
            "data_tokens": SITE.tokens,
            "same_data": [],
            "tokens": summary["tokens_total"],
            "told": True,
            "is_final": True,
        }.items()
    )
    assert site["epochs"] == pytest.approx(summary["tokens_total"] / SITE.tokens, rel=1e-4)
    # Each slot evaluates on the same held-out batches as the home, and both know the same final model.
    assert site["global_first"] == pytest.approx(summary["eval_loss_initial"])
    assert site["global_last"] == pytest.approx(summary["eval_loss_final"])
    assert site["own_last"] not in (None, site["global_last"])
    assert site["global_last"] < site["global_first"]
    kinds = [(point["kind"], point["learner"]) for point in site["history"]]
    assert kinds[:2] == [("initial", 0), ("initial", 1)]
    assert kinds[-2:] == [("final", 0), ("final", 1)]
    assert "during" in dict(kinds)
    assert site["own_now"] is not None
    assert [point["own_loss"] for point in site["history"][:2]] == [None, None]
    assert all(point["own_loss"] is not None for point in site["history"][2:])


@pytest.mark.slow
def test_report_and_summary_are_read_again(ran: Any) -> None:
    folder = _with_summary(ran[1][0])
    (row,) = site_words.rows(summary_of(folder) or {})
    page = write_report(folder).read_text()
    for name in ("global_first", "global_last", "own_last"):
        assert f'<data value="{getattr(row, name)}" data-figure="site-local-{name}">' in page
    assert 'id="sites"' in page
    assert 'id="sites"' not in write_report(_with_summary(ran[0][0])).read_text()


def _with_summary(result: WorldResult) -> Path:
    """The folder of a run, with the file that is written at its end."""
    (result.folder / "summary.json").write_text(json.dumps(result.summary))
    return result.folder


@pytest.mark.slow
def test_what_a_site_keeps_comes_into_no_file_of_the_home(ran: Any, world: Worlds) -> None:
    result = _run(world, site=replace(SITE, is_told=False))
    (site,) = result.summary["sites"]
    assert not site["told"]
    assert site["history"] == []
    assert all(site[name] is None for name in ("global_first", "global_last", "own_last", "own_now", "global_now"))
    assert site["tokens"] == result.summary["tokens_total"]
    told = [point["own_loss"] for point in ran[1][0].summary["sites"][0]["history"] if point["own_loss"] is not None]
    written = [form for loss in told for form in (str(loss).encode(), struct.pack(">d", loss))]
    assert _files_with(ran[1][0].folder, written), "a run that tells them has them in its files"
    assert _files_with(result.folder, written) == []
    assert site_words.NOT_TOLD in write_report(_with_summary(result)).read_text()


def _files_with(folder: Path, forms: list[bytes]) -> list[str]:
    """The files below a folder that have one of these bytes."""
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [name for name, data in files.items() if any(form in data for form in forms)]


@pytest.mark.long
@pytest.mark.slow
def test_sites_are_machines_and_a_life_after_a_death_goes_on_with_its_site(world: Worlds) -> None:
    faults = [Kill("learner/1", at=1.5)]
    task = replace(ADAM, site=SITE)
    result = world.run(task=task, learners=2, steps=STEPS, faults=faults)
    sites = {site["site"]: site for site in result.summary["sites"]}
    assert {name: site["learners"] for name, site in sites.items()} == {"learner-0": [0], "learner-1": [1]}
    assert [site["same_data"] for site in sites.values()] == [["learner-1"], ["learner-0"]]
    assert sum(site["tokens"] for site in sites.values()) == result.summary["tokens_total"]
    assert all(site["is_final"] for site in sites.values())
    kinds = [point["kind"] for point in sites["learner-1"]["history"]]
    assert (kinds[0], kinds[-1]) == ("initial", "final")
