"""A learner whose layers are cut over stages: the losses and payloads of one device, and a state that is cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.patience import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.long]

MESHES = {"2 stages": 2, "2 x 2": 4}


def figures(part: str) -> dict[str, Any]:
    """Figures of some meshes, all from one process."""
    command = [sys.executable, "-m", "tests.ops.island.stage_figures", part]
    given = os.environ | {"JAX_PLATFORMS": "cpu"}
    told = subprocess.run(command, env=given, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return figures("exchanges")


@pytest.fixture(scope="module")
def losses() -> dict[str, Any]:
    return figures("losses")


@pytest.mark.parametrize("mesh", MESHES)
def test_losses_are_those_of_one_device(found: dict[str, Any], mesh: str) -> None:
    assert found[mesh]["losses"] == pytest.approx(found["1"]["losses"], rel=2e-6)
    assert found["1"]["losses"][-1] < 0.9 * found["1"]["losses"][0]


def test_losses_of_four_stages_are_those_of_one_device(found: dict[str, Any], losses: dict[str, Any]) -> None:
    assert losses["adamw"]["4 stages"] == pytest.approx(found["1"]["losses"], rel=2e-6)


@pytest.mark.parametrize(("optimizer", "mesh", "within"), [("sgd", "4 stages", 2e-6), ("muon", "2 stages", 2e-5)])
def test_losses_by_other_optimizers_are_those_of_one_device(
    losses: dict[str, Any], optimizer: str, mesh: str, within: float
) -> None:
    of = losses[optimizer]
    assert of[mesh] == pytest.approx(of["1"], rel=within)
    assert of["1"][-1] < 0.9 * of["1"][0]


def test_experts_are_balanced_by_micro_batch_on_one_device_too(losses: dict[str, Any]) -> None:
    assert losses["experts"]["2 stages"] == pytest.approx(losses["experts"]["1"], rel=2e-6)


@pytest.mark.parametrize("mesh", MESHES)
def test_payloads_and_adoptions_do_not_depend_on_stages(found: dict[str, Any], mesh: str) -> None:
    assert found[mesh]["payloads"] == found["1"]["payloads"]
    assert all(found[mesh]["taken"])
    assert all(found[mesh]["codes_agree"])


@pytest.mark.parametrize("mesh", MESHES)
def test_each_device_has_its_part_of_the_state_and_of_a_fragment(found: dict[str, Any], mesh: str) -> None:
    of, replicated = found[mesh], found[mesh]["replicated_bytes"]
    assert replicated <= 0.02 * of["state_bytes"]
    assert of["device_bytes"] <= 1.1 / MESHES[mesh] * of["state_bytes"] + replicated
    assert of["widest"] <= 1.1 / MESHES[mesh] * found["1"]["widest"] + replicated


@pytest.mark.parametrize("mesh", MESHES)
def test_exchanges_leave_one_executable_and_the_state_where_it_was(found: dict[str, Any], mesh: str) -> None:
    assert (found[mesh]["executables"], found[mesh]["compiled"], all(found[mesh]["kept"])) == (1, 0, True)
