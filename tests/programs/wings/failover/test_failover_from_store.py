"""What a store has of a run becomes the folder of its next home, or nothing at all."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from isthmus.ops.data.site_terms import SiteTerms
from isthmus.programs import SHIPPED_TASK
from isthmus.programs.engine.cluster.cluster_file import Machine
from isthmus.programs.engine.cluster.handover import RunRoot, Sites
from isthmus.programs.engine.machine.absent_homes import LATE, alone_ns
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER, MANIFEST
from isthmus.programs.engine.snapshots.snapshots import Manifest
from isthmus.programs.engine.snapshots.stored import FolderStore, StoredSnapshots, StorePlace, StoreTerm
from isthmus.programs.wings.failover import takeover as failover
from isthmus.runtime.daemon import home_daemon
from isthmus.runtime.daemon.ledger import Ledger
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home_events import Journal
from isthmus.runtime.system.disk import DISK

HOUR = 3600 * 10**9
CLUSTER = {"home": "alpha", "sites": [], "placement": {}, "digest": "", "term": 1, "former": ""}

RUN = {"tokens": 1, "learners": 1, "slots_max": 1}
"""Section `run.` of a spec."""


def told() -> dict[str, Any]:
    """A spec of a run that began just now, by the clock of its home."""
    job = {"program": "decoupled-diloco", "task": SHIPPED_TASK, "layout": [], "tokens_per_batch": 1,
           "settings": {}, "tokens_by_slot": [],
           "has_gradients": False}  # fmt: skip
    here = {"address": "127.0.0.1", "learners": 1, "wall_ns": time.time_ns()}
    return {"run": "run-1", "fingerprint": "", "roles": {"learner": 1}, "most": {}, "least": {}, "computing": [],
            "settings": RUN, "zero_ns": 0, "cpu_seconds": 0.0, "here": here, "job": job}  # fmt: skip


def stored(folder: Path, *without: str) -> StorePlace:
    """A store with one snapshot, an hour into the run, without some of its files."""
    files = {"spec.json": told(), "config.toml": "", "graph.json": {}, spec.CLUSTER: CLUSTER}
    data = {name: b"" if value == "" else json.dumps(value).encode() for name, value in files.items()}
    given = {name: value for name, value in data.items() if name not in without}
    writer = StoredSnapshots(FolderStore(folder, DISK), "run-1", "elsewhere:/run", StoreTerm(), 1)
    manifest = Manifest(format=1, number=1, fragments=[])
    list(writer.writing(manifest, lambda file: b"", lambda: given, {("learner", 0): 3}, HOUR))
    return StorePlace(str(folder))


@pytest.fixture
def aside(tmp_path: Path) -> Path:
    folder = tmp_path / "aside"
    folder.mkdir()
    return folder


def test_a_run_of_a_cluster_gets_its_folder_below_the_root_and_its_times_count_on(tmp_path: Path, aside: Path) -> None:
    root = RunRoot.at(tmp_path / "root")
    found = failover.fetched(stored(tmp_path / "store"), aside, "Trying")
    folder = failover.settled(found, aside, root, "next")
    assert folder == tmp_path / "root" / "next"
    assert json.loads((folder / spec.CLUSTER).read_text()) == CLUSTER
    assert (folder / FOLDER / MANIFEST).exists()
    began = json.loads((folder / spec.SPEC).read_text())["zero_ns"]
    assert HOUR <= time.monotonic_ns() - began < 2 * HOUR, "never before its snapshot"
    assert list(aside.iterdir()) == []


def test_a_run_of_one_machine_is_none_that_another_can_be_the_home_of(tmp_path: Path, aside: Path) -> None:
    place = stored(tmp_path / "store", spec.CLUSTER)
    with pytest.raises(ConfigError, match="expected a run of a cluster, found run-1, a run of one machine"):
        failover.fetched(place, aside, "Trying")


def test_what_has_no_spec_or_no_snapshot_is_refused(tmp_path: Path, aside: Path) -> None:
    with pytest.raises(ConfigError, match=r"no spec\.json"):
        failover.fetched(stored(tmp_path / "store", spec.SPEC), aside, "Trying")
    with pytest.raises(ConfigError, match="found none"):
        failover.fetched(StorePlace(str(tmp_path / "nothing")), aside, "Trying")


@pytest.mark.parametrize("url", ["/tmp", "file:///tmp", "local:///tmp", ""])
def test_no_request_names_a_folder_of_the_machine(url: str) -> None:
    with pytest.raises(ConfigError, match="expected a"):
        failover.place(url, "Trying")
    assert failover.place("memory://bucket/run", "Trying").text == "memory://bucket/run"


@pytest.mark.parametrize(
    ("placement", "journal", "may_live"),
    [
        ({}, None, False),
        ({"learner/0": "alpha", "syncer/0": "beta"}, None, False),
        ({"learner/0": "beta"}, None, True),
        ({"learner/0": "beta"}, Journal(retired=(("learner/0", "left"),)), False),
        ({"learner/0": "beta"}, Journal(away=("beta",)), False),
        ({"learner/0": "alpha"}, Journal(machines=(("learner/1", "gamma"),)), True),
        ({"learner/0": "alpha"}, Journal(machines=(("learner.1/0", "gamma"),)), True),
    ],
)
def test_learners_on_other_machines_may_live_for_as_long_as_they_do_without_their_home(
    tmp_path: Path, placement: dict[str, str], journal: Journal | None, may_live: bool
) -> None:
    (tmp_path / spec.SPEC).write_text(json.dumps({**told(), "settings": {**RUN, "home_away_seconds": 30.0}}))
    (tmp_path / spec.CLUSTER).write_text(json.dumps({**CLUSTER, "placement": placement}))
    if journal is not None:
        with closing(Ledger(tmp_path)) as ledger:
            ledger.note(home_daemon.JOURNAL, msgspec.msgpack.encode(journal))
    alone = alone_ns(tmp_path) / 1e9
    assert alone == (LATE * 30.0 if may_live else 0.0)


def test_learners_of_the_next_home_go_on_with_the_data_of_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they had them in the run of the home before it."""
    own = {"paths": ["/ours"], "terms": asdict(SiteTerms("0" * 32, 9, 9))}
    for name, here in (("run", {}), ("former", {"own_data": own, "is_site": True})):
        (tmp_path / name).mkdir()
        (tmp_path / name / spec.SPEC).write_text(json.dumps({**told(), "here": {**told()["here"], **here}}))
    sites = Sites.of("beta", [Machine("beta", address="tcp://127.0.0.1:1", islands=1)], {}, "")
    for name in ("stand_still", "lay_out"):
        monkeypatch.setattr(failover, name, lambda *asked, **more: None)
    monkeypatch.setattr(home_daemon, "move", lambda *asked: None)
    monkeypatch.setattr(Sites, "archive", lambda *asked: None)
    state: Any = SimpleNamespace(folder=tmp_path / "run", moments=())
    failover.write(state, sites, None, tmp_path / "former")
    here = spec.load(tmp_path / "run").here
    assert here.own_data is not None
    assert (here.own_data.paths, here.is_site) == (("/ours",), False)


def test_a_machine_with_other_data_that_had_no_part_in_the_run_trains_on_none(tmp_path: Path) -> None:
    at_home = Sites.of(
        "beta", [Machine("beta", address="tcp://127.0.0.1:1", islands=1)], {Replica("learner", 0): "beta"}, ""
    )
    none_there = Sites.of("beta", [Machine("beta", address="tcp://127.0.0.1:1")], {}, "")
    for sites, former, has_own_data, fits in (
        (at_home, None, True, False),
        (at_home, tmp_path, True, True),
        (at_home, None, False, True),
        (none_there, None, True, True),
    ):
        if fits:
            failover.check_data(sites, former, has_own_data=has_own_data, doing="Testing")
            continue
        with pytest.raises(ConfigError, match="no part in the run"):
            failover.check_data(sites, former, has_own_data=has_own_data, doing="Testing")
