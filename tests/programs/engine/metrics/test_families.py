"""Names, units and labels of the metrics, and what they say of a status."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from isthmus.programs.engine.metrics.families import SERIES_MAX, every, families
from isthmus.programs.engine.metrics.run_status import RunStatus

DOCS = Path(__file__).parents[4] / "docs"
REPORT: dict[str, Any] = {"incarnation": 2, "step": 50, "tokens": 3200, "loss": 2.5, "staleness": 7}
REPORT |= {"step_ms": 200.0, "waited": 3 * 10**9}
TRAINING: dict[str, Any] = {
    "tokens": 6400,
    "tokens_budget": 64000,
    "outer_steps": 3,
    "contributors_mean": 1.5,
    "merged_share": 0.8,
    "goodput": None,
    "eval_loss": float("nan"),
    "model_whole": {"0": True},
    "learners": {"0": REPORT, "1": REPORT},
    "files": {"metrics": {"lost": 2}, "merges": {"lost": 1}},
    "snapshots": {"error": None, "store": {"number": 4, "error": "no route"}},
}


def host(slot: int, **more: Any) -> dict[str, Any]:
    known = {"name": f"learner/{slot}", "machine": "alpha", "incarnation": 2, "state": "alive", "steps": 9}
    return {**known, "bytes_sent": 5, "bytes_received": 6, "cpu_seconds": 1.5, "memory_bytes": 7, **more}


def samples(*runs: RunStatus) -> dict[tuple[str, ...], float]:
    """Every sample by name and labels, as it is read out of the text."""

    class Collector:
        def collect(self) -> Any:
            return families("alpha", runs)

    registry = CollectorRegistry()
    registry.register(Collector())
    text = generate_latest(registry).decode()
    read = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    order = ("run", "slot", "machine", "scalar", "site", "quantile")
    return {(each.name, *(each.labels[name] for name in order if name in each.labels)): each.value for each in read}


def test_names_have_units_and_labels_do_not_grow() -> None:
    names = [family.name for family in every()]
    assert len(set(names)) == len(names)
    for family in every():
        assert set(family.labels) <= {"run", "slot", "machine", "scalar", "site", "quantile"}
        assert re.fullmatch(r"(run|learner|machine|site)_[a-z_]+", family.name)
        assert family.says.endswith(".")


def test_of_a_site_what_it_keeps_has_no_sample() -> None:
    told = {"site": "alpha", "tokens": 640, "epochs": 0.5, "data_tokens": 1280, "global_last": 2.5, "own_last": 2.25}
    kept = {**told, "site": "beta", "epochs": None, "global_last": None, "own_last": None}
    got = samples(RunStatus("r", [], {**TRAINING, "sites": [told, kept]}))
    of_sites = {name: value for name, value in got.items() if name[0].startswith("isthmus_site_")}
    assert of_sites == {
        ("isthmus_site_tokens_total", "r", "alpha"): 640,
        ("isthmus_site_epochs", "r", "alpha"): 0.5,
        ("isthmus_site_data_tokens", "r", "alpha"): 1280,
        ("isthmus_site_global_loss", "r", "alpha"): 2.5,
        ("isthmus_site_own_loss", "r", "alpha"): 2.25,
        ("isthmus_site_tokens_total", "r", "beta"): 640,
        ("isthmus_site_data_tokens", "r", "beta"): 1280,
    }


def test_a_home_has_the_run_and_its_learners() -> None:
    hosts = [
        host(0),
        host(1, state="given up", incarnation=3),
        host(2, state="suspect"),
        {**host(0), "name": "syncer/0"},
    ]
    got = samples(RunStatus("r", hosts, TRAINING))
    assert got["isthmus_run_tokens_total", "r"] == 6400
    assert got["isthmus_run_merges_total", "r"] == 3
    assert got["isthmus_run_learners", "r"] == 1
    assert got["isthmus_run_lost_lines_total", "r"] == 3
    assert (got["isthmus_run_snapshots_failing", "r"], got["isthmus_run_stored_snapshot_number", "r"]) == (1, 4)
    assert got["isthmus_learner_step_seconds", "r", "0", "alpha"] == 0.2
    assert got["isthmus_learner_waited_seconds_total", "r", "0", "alpha"] == 3
    assert got["isthmus_learner_steps_total", "r", "0", "alpha"] == 50
    assert got["isthmus_learner_steps_total", "r", "1", "alpha"] == 9  # Its report is of the life before.
    assert [got["isthmus_learner_given_up", "r", slot, "alpha"] for slot in "012"] == [0, 1, 0]
    assert [got["isthmus_learner_up", "r", slot, "alpha"] for slot in "012"] == [1, 0, 0]
    assert not any(name in ("isthmus_run_goodput_ratio", "isthmus_run_evaluation_loss") for name, *_ in got)
    assert got["isthmus_machine_runs", "alpha"] == 1


def test_a_held_out_set_has_its_loss_by_name() -> None:
    scalars = {"loss/code": 1.5, 'loss/a "b" \u00fc': 2.5, "accuracy": None}
    got = samples(RunStatus("r", [], {**TRAINING, "eval_metrics": scalars}))
    found = {labels[1]: value for (name, *labels), value in got.items() if name == "isthmus_run_evaluation_scalar"}
    assert found == {"loss/code": 1.5, 'loss/a "b" \u00fc': 2.5}


def test_another_machine_has_its_own_hosts_alone() -> None:
    got = samples(RunStatus("r", [host(0)]))
    assert not any(name.startswith("isthmus_run_") for name, *_ in got)
    assert got["isthmus_learner_sent_bytes_total", "r", "0", "alpha"] == 5


def test_a_run_in_one_process_has_reports_and_no_hosts() -> None:
    got = samples(RunStatus("r", [], TRAINING))
    assert got["isthmus_learner_tokens_total", "r", "1", ""] == 3200


def test_programs_that_merge_nothing_have_no_merges() -> None:
    got = samples(RunStatus("r", [], {**TRAINING, "model_whole": {}}))
    assert not any("merge" in name for name, *_ in got)


def test_a_status_may_lack_anything() -> None:
    assert samples(RunStatus("r", [], {"phase": "starting"}))
    assert samples(RunStatus("r", [{"name": "learner/0", "state": "starting"}], {}))


def test_the_reference_lists_every_metric() -> None:
    page = (DOCS / "reference" / "metrics.md").read_text()
    listed = re.findall(r"^\| `(isthmus_\w+)` \|", page, re.M)
    assert listed == [f"isthmus_{family.name}{'_total' if family.is_counter else ''}" for family in every()]


def test_alarms_and_dashboard_use_metrics_that_there_are() -> None:
    known = {f"isthmus_{family.name}{'_total' if family.is_counter else ''}" for family in every()}
    for name in ("prometheus-alarms.yml", "grafana-dashboard.json"):
        used = set(re.findall(r"isthmus_\w+", (DOCS / "examples" / name).read_text()))
        assert used
        assert used <= known


def test_a_scrape_of_many_learners_has_quantiles_and_the_series_of_those_that_are_looked_for() -> None:
    many = 1024
    hosts = [host(slot, state="gone" if slot == 5 else "alive") for slot in range(many)]
    reports = {str(slot): {**REPORT, "step_ms": slot + 1.0} for slot in range(many)}
    found = samples(RunStatus("r", hosts, {**TRAINING, "learners": reports}))
    slots = {key[2] for key in found if key[0] == "isthmus_learner_up"}
    assert slots == {"5", *map(str, range(many - 10, many))}
    assert found["isthmus_run_learner_step_seconds", "r", "0.5"] == many / 2 / 1000
    assert found["isthmus_run_learners", "r"] == many - 1
    assert len(found) < 400
    few = samples(RunStatus("r", hosts[:SERIES_MAX], {**TRAINING, "learners": {}}))
    assert len({key[2] for key in few if key[0] == "isthmus_learner_up"}) == SERIES_MAX
    assert not any(key[0].startswith("isthmus_run_learner_") for key in few)
