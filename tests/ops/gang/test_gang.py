"""An island of two processes with two devices each, and one of a process with four: the same losses and payloads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.patience import PATIENCE

ALONE = """
import json, jax
jax.config.update("jax_num_cpu_devices", 4)
from tests.ops.island import mesh_figures
from tests.ops.island.mesh_figures import LanguageTask, figures, fragments_of
mesh_figures.EXCHANGES = 3
task = LanguageTask()
print(json.dumps(figures(task, fragments_of(task, 3), 4)))
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


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
    assert gang["executables"] == 1
    assert gang["state_bytes"] == alone["state_bytes"]
    assert gang["device_bytes"] == alone["device_bytes"]
