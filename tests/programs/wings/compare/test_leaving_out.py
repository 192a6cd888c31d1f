"""`isthmus compare --without`: which runs are asked for, and that the same command goes on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.programs.command.request_options import Options
from isthmus.programs.wings.compare import leaving_out
from isthmus.programs.wings.compare.leaving_out import KEPT, LeavingOut, leave_out
from isthmus.runtime.errors import ConfigError, RunError

CLUSTER = """
[[machine]]
name = "home"
address = "tcp://127.0.0.1:1"
islands = 1
[[machine]]
name = "gamma"
address = "tcp://127.0.0.1:2"
islands = 2
[[machine]]
name = "beta"
address = "tcp://127.0.0.1:3"
islands = 1
[run]
tokens = 3000
"""


class Sites:
    """The machines, as the command meets them: what each run was asked, and how it ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.asked: list[tuple[int, int, tuple[str, ...], list[str]]] = []
        self.fails: set[int] = set()
        self.have_part = ["beta", "gamma"]
        (folder / "cluster.toml").write_text(CLUSTER)
        self.options = Options(cluster=folder / "cluster.toml")
        self.folder = folder / "kept"
        monkeypatch.setattr(leaving_out, "_prepared", self.prepared)
        monkeypatch.setattr(leaving_out, "_pace", lambda options: 100.0)
        monkeypatch.setattr(leaving_out, "start_on_machine", self.run)

    def prepared(self, options: Options) -> Any:
        sections, faults = options.sections()
        assert not faults
        cluster = options.machines
        assert cluster is not None
        run = {
            key: json.loads(str(value)) if key == "leaves_out" else int(value) for key, value in sections.run.items()
        }
        settings = {"seed": 0, "leaves_out": [], **run}
        return SimpleNamespace(spec={"settings": settings}, config="", machines=[m.name for m in cluster.machines])

    def run(self, daemon: Any, handed: Any, viewed: Any) -> Any:
        wanted = handed.spec["settings"]
        with viewed(SimpleNamespace(job=SimpleNamespace(tokens=wanted["tokens"]))) as watch:
            watch.update({"tokens": 5})
        self.asked.append((wanted["seed"], wanted["tokens"], tuple(wanted["leaves_out"]), handed.machines))
        if len(self.asked) in self.fails:
            raise RunError("it failed")
        names = [name for name in self.have_part if name not in wanted["leaves_out"]]
        sites = [
            {"site": name, "tokens": 1000, "global_last": 2.0, "is_final": True, "learners": [slot]}
            for slot, name in enumerate(names)
        ]
        summary = {"outcome": "done", "tokens_total": wanted["tokens"], "wall_seconds": 1.0, "sites": sites}
        return SimpleNamespace(summary=summary, folder=Path("runs/x"))

    def leave_out(self, seeds: int = 2, site: str = "beta", **options: Any) -> bool:
        wanted = Options(cluster=self.options.cluster, **options)
        return leave_out(LeavingOut(wanted, site, seeds, self.folder), as_json=True)


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sites:
    return Sites(monkeypatch, tmp_path)


def test_each_seed_has_a_run_with_the_site_and_one_without_of_the_others_tokens(sites: Sites, capsys: Any) -> None:
    assert sites.leave_out(run={"seed": "4"})
    everybody, others = ["home", "gamma", "beta"], ["home", "gamma"]
    assert sites.asked == [
        (seed, tokens, without, machines)
        for seed in (4, 5)
        for tokens, without, machines in ((3000, (), everybody), (2000, ("beta",), others))
    ]
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert result["cost"] == {"runs": 4, "tokens": 12_000, "seconds": 120.0}
    assert [each["site"] for each in result["changes"]] == ["gamma"]
    assert result["changes"][0]["change"]["seeds"] == [4, 5]


def test_the_same_command_goes_on_and_makes_no_run_twice(sites: Sites, capsys: Any) -> None:
    sites.fails = {2}
    assert not sites.leave_out(seeds=1)
    assert json.loads(capsys.readouterr().out)["failed"] == 1
    assert sites.leave_out(seeds=1)
    assert [without for _, _, without, _ in sites.asked] == [(), ("beta",), ("beta",)]
    assert sites.leave_out(seeds=2)
    assert len(sites.asked) == 5
    assert len(json.loads((sites.folder / KEPT).read_text())) == 5


def test_a_site_that_has_no_part_is_named_after_the_first_run(sites: Sites) -> None:
    sites.have_part = ["gamma"]
    with pytest.raises(ConfigError) as raised:
        sites.leave_out()
    assert "gamma" in raised.value.faults[0].found
    assert len(sites.asked) == 1


@pytest.mark.parametrize("wrong", [{"site": "home"}, {"seeds": 0}])
def test_the_home_cannot_be_left_out_nor_can_there_be_no_seed(sites: Sites, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        sites.leave_out(**wrong)
    assert not sites.asked
    assert not sites.folder.exists()


def test_a_cluster_file_is_needed_and_options_of_other_comparisons_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        leave_out(LeavingOut(Options(), "beta", 2, tmp_path), as_json=True)
    with pytest.raises(ConfigError) as raised:
        leaving_out.refuse_others({"--sweep": None, "--margin": 0.1})
    assert "--margin" in raised.value.faults[0].found
    leaving_out.refuse_others({"--sweep": None, "--margin": None})


def test_what_is_kept_and_cannot_be_read_is_told(sites: Sites) -> None:
    sites.folder.mkdir()
    (sites.folder / KEPT).write_text("{")
    with pytest.raises(ConfigError):
        sites.leave_out()


def test_a_run_without_machines_has_the_learners_of_the_others(sites: Sites) -> None:
    found, faults = sites.options.with_sets(['run.leaves_out=["gamma"]']).sections()
    assert not faults
    assert found.run["learners"] == 2
    assert sites.options.sections()[0].run["learners"] == 4
    text = CLUSTER.replace("[run]\n", '[run]\nleaves_out = ["beta", "gamma"]\n')
    assert sites.options.cluster is not None
    sites.options.cluster.write_text(text)
    cluster = sites.options.machines
    assert cluster is not None
    assert [machine.name for machine in cluster.machines] == ["home"]
