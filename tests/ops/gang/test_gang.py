"""An island of two processes with two devices each, and one of a process with four: the same losses and payloads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.patience import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.long]

ALONE = """
import json, jax
jax.config.update("jax_num_cpu_devices", 4)
from tests.ops.island import mesh_figures
from tests.ops.island.mesh_figures import LanguageTask, figures, fragments_of
mesh_figures.EXCHANGES = 3
task = LanguageTask()
fragments = fragments_of(task, 3)
print(json.dumps({**figures(task, fragments, 4), "whole": 4 * max(each.size for each in fragments)}))
"""

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "2",
}
"""What a daemon hands on that was started by srun: jax takes it for a process of one GPU."""


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    environment = os.environ | SLURM | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def found() -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of one process, and those of two."""
    leader, alone = started("-m", "tests.ops.gang.gang_figures", "0"), started("-c", ALONE)
    processes = [leader, alone]
    try:
        assert leader.stdout is not None
        processes.append(started("-m", "tests.ops.gang.gang_figures", "1", leader.stdout.readline()))
        told = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0], [errors[-2000:] for _, errors in told]
    return json.loads(told[1][0].splitlines()[-1]), json.loads(told[0][0].splitlines()[-1])


def test_losses_are_those_of_one_process(found: tuple[dict[str, Any], dict[str, Any]]) -> None:
    alone, gang = found
    assert gang["losses"] == pytest.approx(alone["losses"], rel=2e-6)
    assert alone["losses"][-1] < alone["losses"][0]


def test_the_leader_has_and_brings_whole_payloads(found: tuple[dict[str, Any], dict[str, Any]]) -> None:
    alone, gang = found
    assert gang["payloads"] == alone["payloads"]
    assert gang["adopted"]


def test_the_state_stays_cut_over_all_processes(found: tuple[dict[str, Any], dict[str, Any]]) -> None:
    alone, gang = found
    assert all(gang["kept"])
    assert (gang["executables"], gang["donated"]) == (1, 1.0)
    assert gang["state_bytes"] == alone["state_bytes"]
    assert gang["device_bytes"] == alone["device_bytes"]


def test_a_later_life_goes_on_with_what_a_former_one_had(found: tuple[dict[str, Any], dict[str, Any]]) -> None:
    again = found[1]["again"]
    assert again["twice"] == again["once"]
    assert again["taken"]
    assert again["borrowed"]
    assert again["whole"]
    assert again["refused"] == [False, False, False]
    assert sum(again["sizes"]) > found[1]["state_bytes"] / 2


def test_a_process_sees_all_its_devices_under_slurm_too(found: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert found[1]["gpus"] == "all"


def test_on_a_mesh_of_two_axes_each_device_has_its_part_of_what_crosses(
    found: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    alone, square = found[0], found[1]["square"]
    assert square["payloads"] == alone["payloads"]
    assert square["adopted"]
    assert square["widest"] <= 0.55 * alone["whole"]
