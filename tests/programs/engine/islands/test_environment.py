"""Which platform and which devices a host gets, from what its machine was declared to have and what is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.programs.engine.islands.claims import set_environment, shares
from isthmus.programs.engine.islands.environment import (
    MEMORY,
    Accelerators,
    Islands,
    beside_accelerators,
    beside_learners,
    compiling,
    evaluator_environment,
    gpus,
    islands_of,
    learner_environment,
    of_former_life,
    of_this_life,
    script_environment,
    usable,
    without_tpu,
)
from isthmus.programs.engine.request.spec import Here
from isthmus.programs.engine.run.host_process import niceness_of
from isthmus.programs.job import TensorSpec
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.host.contract import IslandDevices
from isthmus.runtime.ids import Replica
from isthmus.runtime.system.processes import ONE_THREAD

GPUS = [f"nvidia{number}" for number in range(8)] + ["nvidiactl", "nvidia-uvm"]
H100 = ("NVIDIA H100", "H100")
V5E = ("TPU v5e", "TPU v5 lite", "v5e")


def eight(platform: str = "cuda") -> Accelerators:
    return Accelerators(platform, tuple(map(str, range(8))))  # type: ignore[arg-type]


def here(learners: int, islands: int = 0, devices: int = 0, kinds: tuple[str, ...] = ()) -> Here:
    return Here("127.0.0.1", learners, islands=islands, devices=devices, kinds=kinds)


def learners(islands: Islands, total: int = 8, given: dict[str, str] | None = None) -> list[dict[str, str]]:
    return [
        learner_environment(islands, each, total, has_evaluator=False, environment=given or {})
        for each in range(len(islands.ids))
    ]


def test_accelerators_are_those_that_files_plugins_and_the_user_agree_on() -> None:
    assert usable({}, GPUS, ["jax_cuda12_plugin"]) == eight()
    assert usable({}, GPUS, []) is None
    assert usable({"JAX_PLATFORMS": "cpu"}, GPUS, ["jax_cuda12_plugin"]) is None
    assert usable({"CUDA_VISIBLE_DEVICES": "2,5"}, GPUS, ["jax_cuda13_plugin"]) == Accelerators("cuda", ("2", "5"))
    assert usable({"CUDA_VISIBLE_DEVICES": "3,-1,2"}, GPUS, ["jax_cuda13_plugin"]) == Accelerators("cuda", ("3",))
    assert usable({"CUDA_VISIBLE_DEVICES": "-1"}, GPUS, ["jax_cuda13_plugin"]) is None
    assert usable({"CUDA_VISIBLE_DEVICES": ""}, GPUS, ["jax_cuda13_plugin"]) is None
    assert usable({"JAX_PLATFORMS": "cuda,cpu"}, ["vfio/0", *GPUS], ["libtpu", "jax_cuda12_plugin"]) == eight()
    assert usable({}, ["vfio/0", "vfio/1", "vfio/vfio"], ["libtpu"]) == Accelerators("tpu", ("0", "1"))


def test_without_accelerators_nothing_is_set() -> None:
    assert learners(islands_of(here(4), None)) == [{}] * 4


def test_learners_of_one_machine_share_its_gpus_evenly() -> None:
    assert learners(islands_of(here(4), eight())) == [
        {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ids} for ids in ("0,1", "2,3", "4,5", "6,7")
    ]


def test_more_learners_than_gpus_share_one_and_its_memory() -> None:
    two = Accelerators("cuda", ("0", "1"))
    told = learners(islands_of(here(4), two), 2)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in told] == ["0", "1", "0", "1"]
    assert {each["XLA_CLIENT_MEM_FRACTION"] for each in told} == {"0.45"}


@pytest.mark.parametrize("name", MEMORY)
def test_what_the_user_says_of_memory_holds(name: str) -> None:
    told = learners(islands_of(here(2), Accelerators("cuda", ("0",))), 1, {name: "0.3"})
    assert told == [{"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0"}] * 2


def test_declared_islands_have_what_was_declared_or_are_refused() -> None:
    assert learners(islands_of(here(1, 1, 4, H100), eight())) == [
        {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    ]
    for wrong, message in (
        (here(3, 3, 4, H100), "expected 12 devices for 3 islands of 4, found 8"),
        (here(1, 1, 4, V5E), "expected devices of kind 'TPU v5e', as the machine was declared, found 8 for 'cuda'"),
    ):
        with pytest.raises(ConfigError, match=message):
            islands_of(wrong, eight())
    with pytest.raises(ConfigError, match=r"expected devices of kind 'NVIDIA H100'.* found none that jax can use"):
        islands_of(here(1, 1, 4, H100), None)


def test_declared_cpu_devices_are_counted_out() -> None:
    assert learners(islands_of(here(1, 0, 4, ("CPU", "cpu")), eight())) == [
        {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
    ]


def test_some_chips_of_a_tpu_host_are_a_host_of_their_own() -> None:
    assert learners(islands_of(here(2, 2, 4, V5E), eight("tpu")))[1] == {
        "JAX_PLATFORMS": "tpu",
        "TPU_VISIBLE_CHIPS": "4,5,6,7",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }
    assert learners(islands_of(here(1), eight("tpu"))) == [{"JAX_PLATFORMS": "tpu"}]
    with pytest.raises(ConfigError, match="as many chips as lie together on a host, found 3"):
        learners(islands_of(here(2, 2, 3, V5E), eight("tpu")))
    with pytest.raises(ConfigError, match="a TPU chip has one process"):
        islands_of(here(9), eight("tpu"))


FORMER = {"TPU_WORKER_ID": "3", "TPU_WORKER_HOSTNAMES": "a,b,c,d", "TPU_PROCESS_PORT": "8476", "HOME": "/root",
          "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_COORDINATOR_ADDRESS": "a:8080"}  # fmt: skip


def test_a_learner_on_a_tpu_waits_for_no_process_of_a_former_life(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = dict.fromkeys(("MEGASCALE_NUM_SLICES", "MEGASCALE_COORDINATOR_ADDRESS"))
    alone = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_PROCESS_PORT": None}
    assert of_this_life(FORMER, 1) == {**slices, **alone}
    assert of_this_life(FORMER, 4) == slices  # Its processes find each other by the others.
    assert of_this_life({"HOME": "/root"}, 1) == {}
    assert sorted(of_former_life(FORMER)) == sorted({*slices, *alone})
    assert of_former_life({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost", "HOME": "/root"}) == []
    for name, value in FORMER.items():
        monkeypatch.setenv(name, value)
    set_environment(of_this_life(FORMER, 1))
    assert {name: os.environ.get(name) for name in FORMER} == {**dict.fromkeys(slices), **alone, "HOME": "/root"}


def test_an_evaluator_on_an_island_shares_the_memory_of_the_first() -> None:
    islands = islands_of(here(8), eight())
    shared = evaluator_environment(islands, 8, {})
    assert (shared["CUDA_VISIBLE_DEVICES"], shared["XLA_CLIENT_MEM_FRACTION"]) == ("0", "0.45")
    assert learner_environment(islands, 0, 8, has_evaluator=True, environment={}) == shared
    assert "XLA_CLIENT_MEM_FRACTION" not in learner_environment(islands, 1, 8, has_evaluator=True, environment={})
    with pytest.raises(ConfigError, match="an evaluator on the CPU beside learners on TPUs"):
        evaluator_environment(islands_of(here(8), eight("tpu")), 8, {})


def test_learners_of_one_process_have_devices_of_their_own() -> None:
    assert shares(8, 4) == [IslandDevices(devices=2, begin=begin) for begin in (0, 2, 4, 6)]
    assert shares(3, 2) == [IslandDevices(devices=1, begin=0), IslandDevices(devices=1, begin=1)]
    assert shares(1, 2) == [IslandDevices(devices=1, begin=0)] * 2


@pytest.mark.parametrize(
    ("variables", "installed", "plugins", "expected"),
    [
        ({}, ["libtpu"], [], {"JAX_PLATFORMS": "cpu"}),
        ({}, ["libtpu", "jax_cuda12_plugin"], ["xla_cuda12"], {"JAX_PLATFORMS": "cpu"}),
        ({}, [], [], {}),
        ({}, ["libtpu"], ["rocm"], {}),
        ({"JAX_PLATFORMS": "tpu"}, ["libtpu"], [], {}),
    ],
)
def test_jax_looks_for_no_tpu_where_only_its_compiler_is(
    variables: dict[str, str], installed: list[str], plugins: list[str], expected: dict[str, str]
) -> None:
    assert without_tpu(variables, installed, plugins) == expected


def test_processes_of_a_script_see_the_gpus_of_their_island(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"nvidia{number}").touch()
    (tmp_path / "nvidiactl").touch()
    four = gpus({}, tmp_path)
    assert four == Accelerators("cuda", ("0", "1", "2", "3"))
    assert gpus({"CUDA_VISIBLE_DEVICES": "2,3"}, tmp_path) == Accelerators("cuda", ("2", "3"))
    assert gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) is None
    assert gpus({}, tmp_path / "none") is None

    def seen(islands: int, has_evaluator: bool = False) -> list[dict[str, str]]:
        return [
            script_environment(four, island, islands, has_evaluator=has_evaluator, environment={})
            for island in range(islands)
        ]

    assert seen(2) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in seen(6)] == ["0", "1", "2", "3", "0", "1"]
    assert [each.get("XLA_CLIENT_MEM_FRACTION") for each in seen(6)] == ["0.45"] * 6
    assert [each.get("XLA_CLIENT_MEM_FRACTION") for each in seen(4, has_evaluator=True)] == ["0.45", None, None, None]
    assert script_environment(None, 0, 2, has_evaluator=False, environment={}) == {}


def test_xla_compiles_on_the_cores_of_a_machine_whose_learners_have_accelerators() -> None:
    cores = len(os.sched_getaffinity(0))
    assert compiling(1, ONE_THREAD) == {"NPROC": str(cores)}
    assert compiling(cores + 1, {"NPROC": "1"}) == {"NPROC": "1"}
    assert compiling(1, {"NPROC": "5"}) == {}
    assert beside_accelerators(ONE_THREAD) == {"JAX_PLATFORMS": "cpu", "NPROC": str(cores), "XLA_FLAGS": None}
    assert beside_accelerators({"NPROC": "3", "XLA_FLAGS": "--xla_a=b"}) == {"JAX_PLATFORMS": "cpu"}


def test_an_evaluator_has_the_cores_that_learners_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    def beside(cores: int, learners: int, devices: int = 0, **own: str) -> dict[str, str | None]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
        return beside_learners(Here("127.0.0.1", learners, devices=devices), {**ONE_THREAD, "NPROC": "1", **own})

    one = {"JAX_PLATFORMS": "cpu"}
    assert beside(2, 2) == beside(8, 16) == beside(8, 7) == beside(8, 2, devices=4) == one
    assert beside(8, 2) == {**one, "NPROC": "6", "OMP_NUM_THREADS": "6", "XLA_FLAGS": None}
    assert beside(8, 2, devices=2) == {**one, "NPROC": "4", "OMP_NUM_THREADS": "4", "XLA_FLAGS": None}
    for name in ("NPROC", "OMP_NUM_THREADS", "XLA_FLAGS"):  # What the user has set stays.
        assert beside(8, 2, **{name: "3"}) == one


@pytest.mark.parametrize(("size", "role", "niceness"), [(999, "evaluator", 0), (1000, "evaluator", 13)])
def test_the_evaluator_of_a_large_model_lets_learners_go_first(size: int, role: str, niceness: int) -> None:
    layout = [TensorSpec("w", (size, 999), "float32"), TensorSpec("b", (size,), "float32")]
    assert niceness_of(Replica(role, 0), layout) == niceness
    assert niceness_of(Replica("learner", 0), layout) == 0
