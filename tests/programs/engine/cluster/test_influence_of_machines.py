"""The largest share of a merge that a machine, or its owner, may have: what is refused, and what the home knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.cluster.handover import Sites
from isthmus.programs.engine.cluster.placement import Machine, Topology, place
from isthmus.programs.engine.cluster.placing import influence_faults, placed, site_warnings
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.programs.settings import Text
from isthmus.runtime.errors import ConfigError, PlacementError
from isthmus.runtime.ids import MachineOwner

HERE = "tcp://127.0.0.1:7400"


def asked(folder: Path, name: str = "decoupled-diloco", **settings: Any) -> Request:
    (folder / "text.txt").write_text("two seas and a narrow land between them, " * 200)
    task_settings = {"data": (str(folder / "text.txt"),), "layers": 1}
    run = {"tokens": 10_000, "learners": 3}
    return prepare(Program(name, **settings), run=run, task_settings=task_settings, run_dir=folder / "run")


def machine(name: str, owner: str = "", share: float | None = None, islands: int = 1) -> Machine:
    return Machine(name, HERE, islands=islands, owner=owner, weight_share_max=share)


@pytest.mark.parametrize(
    ("machines", "expected", "found"),
    [
        ([machine("a", share=0.3), machine("b", share=0.3), machine("c", share=0.3)], "1 or more for all", "0.9"),
        # Two machines of one owner have its share together.
        ([machine("a", "ann", 0.5), machine("b", "ann", 0.5), machine("c", share=0.4)], "ann, c", "0.9"),
        ([machine("a", "ann", 0.5), machine("b", "ann", 0.6), machine("c")], "0.5, as at others of 'ann'", "0.6"),
    ],
)
def test_caps_that_nobody_can_keep_are_refused(
    tmp_path: Path, machines: list[Machine], expected: str, found: str
) -> None:
    with pytest.raises(PlacementError) as caught:
        placed(asked(tmp_path), Topology(tuple(machines)))
    (fault,) = caught.value.faults
    assert fault.action.startswith("Reading weight_share_max")
    assert expected in fault.expected
    assert fault.found == found


def test_what_everybody_may_have_holds_for_who_has_no_cap_of_its_own(tmp_path: Path) -> None:
    request = asked(tmp_path, weight_share_max=0.4)
    topology = Topology((machine("a", share=0.1), machine("b", islands=2)))
    placement = place(request.graph, {"learner": 3, "syncer": 1, "evaluator": 1, "recorder": 1}, topology)
    assert [fault.found for fault in influence_faults(request, topology, placement)] == ["0.5"]
    wide = Topology((machine("a", share=0.6), machine("b", islands=2)))
    assert not list(influence_faults(request, wide, placement))


def test_a_program_that_bounds_no_shares_takes_no_machine_that_asks_for_it(tmp_path: Path) -> None:
    topology = Topology((machine("a", share=0.5), machine("b", islands=2)))
    with pytest.raises(PlacementError, match="weight_share_max of 'a': expected a program that has"):
        placed(asked(tmp_path, "data-parallel"), topology)


def test_a_weight_of_a_site_that_is_no_machine_yet_is_told(tmp_path: Path) -> None:
    topology = Topology((machine("alpha"), machine("beta")))
    request = asked(tmp_path, site_weight={"alpha": 2.0, "bet": 1.0})
    (warning,) = site_warnings(request, topology)
    assert warning.found == "'bet'"
    assert "beta" in warning.remedy
    assert not list(site_warnings(asked(tmp_path, site_weight="equal"), topology))
    assert not list(site_warnings(asked(tmp_path), topology))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("site_weight", {"a/b": 1.0}),
        ("site_weight", {"alpha": 0.0}),
        ("site_weight", {"alpha": -1.0}),
        ("site_weight", {"alpha": float("nan")}),
        ("site_weight", {"alpha": float("inf")}),
        ("site_weight", {"alpha": "much"}),
        ("site_weight", {}),
        ("site_weight", "tokens"),
        ("clip_answers", 0.0),
        ("clip_answers", float("inf")),
        ("clip_answers", -1),
        ("clip_answers", "median"),
        ("epochs_max", 0),
        ("epochs_max", float("nan")),
    ],
)
def test_terms_of_sites_that_mean_nothing_are_refused(tmp_path: Path, setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        asked(tmp_path, **{setting: value})
    (fault,) = caught.value.faults
    assert f"program.{setting}" in fault.action


def test_a_table_on_the_command_line_gives_sites_their_weights(tmp_path: Path) -> None:
    weights = asked(tmp_path, site_weight=Text("{alpha = 2, beta = 0.5}")).job.settings["site_weight"]
    assert weights == {"alpha": 2.0, "beta": 0.5}
    assert asked(tmp_path, epochs_max=Text("2.5"), clip_answers=Text("1")).job.settings["clip_answers"] == 1.0


def test_the_home_knows_whose_machines_are_and_what_they_may_have() -> None:
    machines = [machine("a", "ann", 0.2), machine("b", "ann"), machine("c", share=0.3), machine("d")]
    sites = Sites.of("d", machines, {}, "digest")
    listed = {"a": MachineOwner("ann", 0.2), "b": MachineOwner("ann", 0.2), "c": MachineOwner("c", 0.3)}
    assert sites.owners({}) == listed
    # By invitation: d is ann's, too, what a is the file says, and e and f share what the first invitation says.
    invited = {name: MachineOwner("ann", 0.9) for name in "ad"}
    invited |= {"e": MachineOwner("eve", 0.1), "f": MachineOwner("eve"), "g": MachineOwner("", 0.4)}
    of_eve = MachineOwner("eve", 0.1)
    joined = {"d": MachineOwner("ann", 0.2), "e": of_eve, "f": of_eve, "g": MachineOwner("g", 0.4)}
    assert sites.owners(invited) == {**listed, **joined}
