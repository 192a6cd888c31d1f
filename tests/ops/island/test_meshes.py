"""A learner on 1, 2, 4 and 8 devices: the same losses and payloads, a state that is cut and stays so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from isthmus.ops.exchange.formats import CODED
from tests.patience import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.long]

MESHES = ("2", "4", "8")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The figures of each number of devices, all from one process."""
    command = [sys.executable, "-m", "tests.ops.island.mesh_figures"]
    given = os.environ | {"JAX_PLATFORMS": "cpu"}
    told = subprocess.run(command, env=given, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert told.returncode == 0, told.stderr
    figures: dict[str, Any] = json.loads(told.stdout)
    return figures


@pytest.mark.parametrize("devices", MESHES)
def test_losses_are_those_of_one_device(found: dict[str, Any], devices: str) -> None:
    assert found[devices]["losses"] == pytest.approx(found["1"]["losses"], rel=2e-6)
    assert found["1"]["losses"][-1] < 0.98 * found["1"]["losses"][0]


@pytest.mark.parametrize("devices", MESHES)
def test_payloads_do_not_depend_on_the_mesh(found: dict[str, Any], devices: str) -> None:
    assert found[devices]["payloads"] == found["1"]["payloads"]


@pytest.mark.parametrize("devices", ["1", *MESHES])
def test_devices_make_the_codes_that_the_host_would_make_of_the_payload(found: dict[str, Any], devices: str) -> None:
    assert found[devices]["codes_agree"] == [True] * 3 * len(CODED)


@pytest.mark.parametrize("devices", MESHES)
def test_each_device_has_its_part_of_the_state_and_of_a_fragment(found: dict[str, Any], devices: str) -> None:
    of, replicated = found[devices], found[devices]["replicated_bytes"]
    assert replicated <= 0.02 * of["state_bytes"]
    assert of["device_bytes"] <= 1.1 / int(devices) * of["state_bytes"] + replicated
    assert of["widest"] <= 1.1 / int(devices) * found["1"]["widest"] + replicated


@pytest.mark.parametrize("devices", MESHES)
def test_exchanges_leave_one_executable_and_the_state_where_it_was(found: dict[str, Any], devices: str) -> None:
    of = found[devices]
    assert (of["executables"], of["compiled"]) == (1, 0)
    assert all(of["kept"])
    assert of["donated"] == 1.0


def test_averaged_gradients_do_not_depend_on_the_mesh(found: dict[str, Any]) -> None:
    alone, together = found["averaged"]
    assert together == pytest.approx(alone, rel=2e-6)
    assert alone[0] != alone[-1]


def test_muon_on_a_mesh_is_that_of_one_device_and_its_momentum_is_cut(found: dict[str, Any]) -> None:
    of, alone = found["muon on 4"], found["muon on 1"]
    assert of["losses"] == pytest.approx(alone["losses"], rel=2e-5)
    assert of["losses"] != found["4"]["losses"]
    assert alone["losses"][-1] < 0.99 * alone["losses"][0]
    assert of["device_bytes"] <= 1.1 / 4 * of["state_bytes"] + of["replicated_bytes"]
    assert of["replicated_bytes"] <= 0.02 * of["state_bytes"]
    assert (of["executables"], of["compiled"], all(of["kept"]), of["donated"]) == (1, 0, True, 1.0)
