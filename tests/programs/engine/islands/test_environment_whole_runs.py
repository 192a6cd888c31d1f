"""Which devices processes get that carry out whole runs by themselves, and what the command's own process leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from isthmus.programs.engine.islands.environment import (
    MEMORY,
    PROCESSES_PER_GPU_MAX,
    Accelerators,
    process_environment,
    process_places,
)
from isthmus.programs.wings.compare.compare_runs import placed


def gpus(count: int) -> Accelerators:
    return Accelerators("cuda", tuple(map(str, range(count))))


def test_one_gpu_is_shared_by_a_few_processes_and_its_memory_by_as_many() -> None:
    where = process_places(gpus(1), 16, 100, {})
    assert where.environments == (
        {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0", "XLA_CLIENT_MEM_FRACTION": "0.23"},
    ) * (PROCESSES_PER_GPU_MAX)
    assert (where.platform, where.devices, where.share) == ("cuda", 1, 0.23)


@pytest.mark.parametrize(("cores", "runs", "count", "share"), [(2, 9, 2, "0.45"), (16, 3, 3, "0.30"), (16, 1, 1, None)])
def test_as_many_as_cores_and_runs_that_are_left(cores: int, runs: int, count: int, share: str | None) -> None:
    where = process_places(gpus(1), cores, runs, {})
    assert [each.get("XLA_CLIENT_MEM_FRACTION") for each in where.environments] == [share] * count


def test_several_gpus_are_taken_in_turn_each_by_one_first() -> None:
    many = process_places(gpus(3), 16, 5, {})
    assert [each["CUDA_VISIBLE_DEVICES"] for each in many.environments] == ["0", "1", "2", "0", "1"]
    few = process_places(gpus(8), 4, 9, {})
    assert [each["CUDA_VISIBLE_DEVICES"] for each in few.environments] == ["0", "1", "2", "3"]
    assert (few.devices, few.share) == (4, None)
    some = process_places(Accelerators("cuda", ("2", "5")), 2, 2, {})
    assert [each["CUDA_VISIBLE_DEVICES"] for each in some.environments] == ["2", "5"]


@pytest.mark.parametrize("name", MEMORY)
def test_what_the_user_says_of_memory_holds(name: str) -> None:
    where = process_places(gpus(1), 4, 4, {name: "0.1"})
    assert where.environments == ({"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0"},) * 4
    assert where.share is None


def test_a_tpu_chip_has_one_process() -> None:
    where = process_places(Accelerators("tpu", ("0", "1", "2", "3")), 16, 9, {})
    assert [each["TPU_VISIBLE_CHIPS"] for each in where.environments] == ["0", "1", "2", "3"]
    assert {each["TPU_CHIPS_PER_PROCESS_BOUNDS"] for each in where.environments} == {"1,1,1"}
    assert process_places(Accelerators("tpu", ("0",)), 16, 9, {}).environments == ({"JAX_PLATFORMS": "tpu"},)


def test_without_accelerators_the_cpu_unless_the_user_names_something_else() -> None:
    assert process_places(None, 2, 9, {}).environments == ({"JAX_PLATFORMS": "cpu"},) * 2
    assert process_places(None, 2, 9, {"JAX_PLATFORMS": "rocm"}).environments == ({}, {})


@pytest.mark.parametrize(
    ("found", "cores", "given", "words"),
    [
        (None, 2, {}, "Computing on the CPU, 2 runs at once."),
        (None, 1, {"JAX_PLATFORMS": "rocm"}, "Computing on what JAX_PLATFORMS names, one run at a time."),
        (gpus(1), 2, {}, "Computing on 1 GPU, 2 runs at once, each with 0.45 of the memory of one. "),
        (gpus(8), 2, {}, "Computing on 2 GPUs, 2 runs at once. "),
        (Accelerators("tpu", ("0",)), 2, {}, "Computing on 1 TPU chip, one run at a time. "),
    ],
)
def test_what_is_chosen_is_said(found: Any, cores: int, given: dict[str, str], words: str) -> None:
    assert placed(process_places(found, cores, 9, given)).startswith(words)


def test_a_run_in_this_process_names_what_was_found_and_the_user_may_name_another() -> None:
    assert process_environment(gpus(2), {}) == {"JAX_PLATFORMS": "cuda,cpu"}
    assert process_environment(gpus(2), {"JAX_PLATFORMS": "cuda"}) == {}
    assert process_environment(None, {}) == {}


@pytest.mark.process
def test_a_request_is_prepared_on_the_cpu_and_the_environment_stays_the_users() -> None:
    """A child of the command's; `JAX_PLATFORMS=cuda` could start nothing here."""
    code = (
        "import json, os\n"
        "from isthmus.programs.engine.run.preparing import in_child\n"
        "def work():\n"
        "    import jax\n"
        "    return {'platform': jax.local_devices()[0].platform, 'named': os.environ['JAX_PLATFORMS']}\n"
        "print(json.dumps(in_child(work)))\n"
    )
    given = os.environ | {"JAX_PLATFORMS": "cuda"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"platform": "cpu", "named": "cuda"}
