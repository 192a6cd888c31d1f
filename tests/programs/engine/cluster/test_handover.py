"""What travels between machines: who takes part, and the digest of what must be alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus import Program
from isthmus.programs import SHIPPED_TASK
from isthmus.programs.engine.cluster.handover import Handover, RunRoot, Sites, digest
from isthmus.programs.engine.cluster.placement import Machine
from isthmus.programs.engine.request import new_spec, spec
from isthmus.programs.engine.request.request import prepare
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import Replica

LEARNERS = {Replica("learner", 0): "alpha", Replica("learner", 1): "beta"}
MACHINES = [
    Machine("alpha", "tcp://10.0.0.1:7400"),
    Machine("beta", roles=("learner",)),
    Machine("gamma", "tcp://10.0.0.3:7400", roles=("syncer",)),
]


def test_sites_are_the_same_after_they_have_travelled() -> None:
    sites = Sites.of("alpha", MACHINES, {**LEARNERS, Replica("syncer", 0): "gamma"}, "d1")
    assert Sites.read(sites.as_data()) == sites
    assert [site.name for site in sites.others] == ["beta", "gamma"]


def test_hosts_move_only_to_machines_that_can_be_dialled_and_take_their_role() -> None:
    sites = Sites.of("alpha", MACHINES, LEARNERS, "")
    assert {site.name: site.movable for site in sites.others} == {"beta": (), "gamma": ("syncer",)}
    assert [sites.computes(site, ["evaluator", "learner"]) for site in sites.others] == [True, False]
    assert sites.sites["gamma"].host == "10.0.0.3"
    assert sites.sites["beta"].host == "127.0.0.1"


def test_the_shards_of_a_region_move_within_it() -> None:
    machines = [
        Machine("alpha", "tcp://10.0.0.1:7400", region="east"),
        Machine("beta", "tcp://10.0.0.2:7400", region="west", roles=("region", "syncer")),
    ]
    hosts = {Replica("region", slot): "alpha" if slot % 2 == 0 else "beta" for slot in range(4)}
    sites = Sites.of("alpha", machines, {**LEARNERS, **hosts}, "")
    assert sites.offers(sites.sites["alpha"]) == ("syncer", "region/0", "region/2", "evaluator")
    assert sites.places().offers == {"beta": ("syncer", "region/1", "region/3")}


def test_the_table_of_the_data_travels_to_the_folder_at_home(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("words and words\n" * 500)
    settings = {"data": (str(tmp_path / "text.txt"),), "context": 16, "batch": 1, "width": 16, "layers": 1, "heads": 2}
    budget = {"tokens": 40_000, "learners": 2}
    request = prepare(Program("decoupled-diloco", fragments=2), run=budget, task_settings=settings, computes=False)
    assert request.data is not None
    sites = Sites.of("alpha", MACHINES[:1], {}, "")
    made = new_spec.of(request, zero_ns=0, cpu_seconds=0.0)
    handed = Handover("it", "", request.config_text, {}, made, sites, request.data.as_dict())
    arrived = Handover.read(json.loads(json.dumps(handed.as_data())))
    folder = arrived.make_folder(RunRoot.at(tmp_path / "root"), 0, None)
    assert json.loads((folder / "data.json").read_text()) == json.loads(json.dumps(request.data.as_dict()))
    assert spec.load(folder).data == request.data_figures()
    unknown = replace(arrived, data={}, folder="other").make_folder(RunRoot.at(tmp_path / "root"), 0, None)
    assert not (unknown / "data.json").exists()
    with pytest.raises((ValueError, TypeError)):
        Handover.read({**handed.as_data(), "data": "[1]"})


def test_the_digest_changes_with_the_task_and_with_the_data_and_not_with_their_place(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text("task = 1\n")
        (tmp_path / folder / "text").write_text("words\n")
    tasks = [f"{tmp_path}/{folder}/mine.py:task" for folder in ("one", "two")]
    data = [f'{SHIPPED_TASK}(data = ["{tmp_path}/{folder}/text"])' for folder in ("one", "two")]
    for (one, two), name in ((tasks, "mine.py"), (data, "text")):
        before = digest("decoupled-diloco", one)
        assert digest("decoupled-diloco", two) == before
        (tmp_path / "two" / name).write_text("task = 2\n")
        assert digest("decoupled-diloco", two) != before
    with pytest.raises(ConfigError, match="a file that can be read"):
        digest("decoupled-diloco", f"{tmp_path}/three/mine.py:task")
