"""How a machine's accelerators are divided where nobody says how many learners there are; machines are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.cluster.placing import CompiledNeeds, not_asked
from isthmus.programs.engine.islands import claims, environment
from isthmus.programs.engine.islands.environment import Accelerators, divided_here, islands_of, learner_environment
from isthmus.programs.engine.machine import default_islands
from isthmus.programs.engine.machine.default_islands import card_names, check_learners, divided, with_islands
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.request.spec import Here
from isthmus.runtime.errors import ConfigError

H200, GB = "NVIDIA H200", 10**9


def gpus(count: int) -> Accelerators:
    return Accelerators("cuda", tuple(map(str, range(count))))


@pytest.mark.parametrize(
    ("count", "state_bytes", "learners", "devices"),
    [
        (8, 2 * GB, 8, 1),
        (8, 200 * GB, 4, 2),
        (8, 500 * GB, 2, 4),
        (8, 1_000 * GB, 1, 8),
        (6, 200 * GB, 3, 2),
        (7, 200 * GB, 3, 2),
        (16, 2 * GB, 8, 1),  # Eight at most.
        (1, 2 * GB, 1, 1),
    ],
)
def test_islands_are_of_as_many_devices_as_the_model_needs(
    count: int, state_bytes: int, learners: int, devices: int
) -> None:
    found = divided(gpus(count), H200, state_bytes, not_asked)
    assert (found.learners, found.devices, found.warnings) == (learners, devices, ())


@pytest.mark.parametrize(("state_bytes", "learners", "devices"), [(2 * GB, 8, 1), (200 * GB, 4, 2), (500 * GB, 2, 4)])
def test_devices_that_xla_makes_have_equal_parts_of_the_memory_of_their_machine(
    monkeypatch: pytest.MonkeyPatch, state_bytes: int, learners: int, devices: int
) -> None:
    monkeypatch.setattr(default_islands, "memory_most", lambda: 8 * 141 * GB)
    made = divided_here({"XLA_FLAGS": "--xla_force_host_platform_device_count=8"})
    assert made is not None
    found = divided(made, default_islands.CPU, state_bytes, not_asked)
    assert (found.learners, found.devices, found.warnings) == (learners, devices, ())


def test_the_figures_of_a_compiler_come_first() -> None:
    def find(machine: Any, slot: int) -> CompiledNeeds:
        return CompiledNeeds(150 * GB // machine.devices, 141 * GB, None, None)

    found = divided(gpus(8), H200, 2 * GB, find)
    assert (found.learners, found.devices) == (4, 2)
    assert "isthmus compile" in found.told


def test_what_more_would_cost_is_told() -> None:
    assert divided(gpus(8), H200, 2 * GB, not_asked).told == (
        "of 8 devices, 1 each: 2.00 GB of the 141 GB of one, without activations; "
        "another would share a device and its memory"
    )
    assert divided(gpus(7), H200, 200 * GB, not_asked).told.endswith("; 1 left over; another would need 1 more")
    for count, state_bytes, left in ((16, 2 * GB, 8), (20, 180 * GB, 4)):  # Of more than eight islands.
        told = divided(gpus(count), H200, state_bytes, not_asked).told
        assert f"; {left} left over; " in told
        assert "another would" not in told
        assert "--learners" in told


def test_a_model_that_no_island_holds_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"at most 127 GB, of the 141 GB of NVIDIA H200, found 250 GB of each of 8"):
        divided(gpus(8), H200, 2_000 * GB, not_asked)
    with pytest.raises(ConfigError, match="200 GB of each of 1 device"):
        divided(gpus(8), H200, 200 * GB, not_asked, most=1)


def test_more_islands_than_devices_hold_are_refused_with_the_numbers() -> None:
    check_learners(gpus(8), H200, 16, 60 * GB, not_asked)
    check_learners(gpus(8), "Unknown", 100, 60 * GB, not_asked)
    with pytest.raises(ConfigError, match=r"at most 16 learners on 8 devices.*found 17 learners, 3 on a device, of 60"):
        check_learners(gpus(8), H200, 17, 60 * GB, not_asked)


@pytest.mark.parametrize("card", ["Own chip", ""])
def test_a_card_that_is_not_in_the_table_is_told_with_what_is_assumed(card: str) -> None:
    found = divided(gpus(4), card, 2 * GB, not_asked)
    assert (found.learners, found.devices) == (4, 1)
    (warning,) = found.warnings
    assert "one device holds a learner of 2.00 GB" in warning.remedy
    assert card in warning.found


def test_the_driver_names_the_cards(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"0000:0{number}").mkdir()
        (tmp_path / f"0000:0{number}" / "information").write_text(f"Model: \t\t {H200}\nIRQ:   {number}\n")
    assert card_names(tmp_path) == [H200] * 2
    assert card_names(tmp_path / "none") == []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with eight H200."""
    monkeypatch.setattr(environment, "find", lambda *_: gpus(8))
    monkeypatch.setattr(default_islands, "card_names", lambda: [H200] * 8)


SMALL = {"layers": 1, "width": 16, "heads": 2, "context": 16, "batch": 4}


def requested(text: str, **run: Any) -> Any:
    asked = {"tokens": 4000, **run}

    def prepared(run: dict[str, Any], more: dict[str, Any]) -> Any:
        return prepare(run=run, task_settings={**SMALL, "data": [text], **more}, computes=False)

    return with_islands(prepared(asked, {}), asked, prepared)


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    return str(folder)


@pytest.mark.usefixtures("machine")
def test_a_run_on_eight_devices_has_eight_islands_each_with_its_own(text_folder: str, tmp_path: Path) -> None:
    request = requested(text_folder)
    assert request.run.learners == request.job.learners == 8
    assert str(request.chosen["run.learners"]).startswith("8 (of 8 devices, 1 each: ")
    islands = islands_of(Here("127.0.0.1", request.run.learners), environment.find())
    held = [claims.claim(claims._needs(islands), tmp_path) for _ in range(8)]
    seen = {
        claim.island: learner_environment(islands, claim.island, 8, has_evaluator=False, environment={})
        for claim in held
    }
    assert {island: each["CUDA_VISIBLE_DEVICES"] for island, each in seen.items()} == {n: str(n) for n in range(8)}
    assert {each["JAX_PLATFORMS"] for each in seen.values()} == {"cuda"}
    for claim in held:
        claim.close()


@pytest.mark.usefixtures("machine")
def test_a_number_that_was_given_stays(text_folder: str) -> None:
    request = requested(text_folder, learners=2)
    assert request.run.learners == 2
    assert "run.learners" not in request.chosen


def test_a_machine_without_accelerators_is_left_as_it_is(text_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find", lambda *_: None)
    assert requested(text_folder).run.learners == 4
