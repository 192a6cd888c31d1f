"""The devices of this machine, and the environment that each process of a run sets for its jax.

Decides which devices there are, without jax (the process that starts a backend has the devices), and which of them each
host gets. Nothing falls back: a host that is to have an accelerator names its platform alone, so that jax fails, with
the reason, where it cannot use it. The user's variables for platforms and visible devices are a bound.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, final

from isthmus.programs.engine.request.environment import made_devices, with_devices
from isthmus.programs.evaluations import SMALL
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.processes import XLA_FLAGS

if TYPE_CHECKING:
    from isthmus.programs.engine.request.spec import Here
    from isthmus.programs.job import TensorSpec

Platform: TypeAlias = Literal["cuda", "tpu", "cpu"]
"""`cpu`: devices that XLA is told to make, which are divided as accelerators are."""

VISIBLE: Final[Mapping[Platform, str]] = {"cuda": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}
"""The variable with the devices of a platform that a process sees."""
_PLUGINS: Final[Mapping[Platform, tuple[str, ...]]] = {
    "cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    "tpu": ("libtpu",),
}
_FILES: Final[Mapping[Platform, re.Pattern[str]]] = {
    "cuda": re.compile(r"nvidia\d+"),
    "tpu": re.compile(r"accel\d+|vfio/\d+"),
}


_SLICES: Final = re.compile(r"MEGASCALE_\w+")
"""Variables that name the slices of one program: for libtpu, which would wait for all of them."""
_ALONE: Final[Mapping[str, str | None]] = {
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "CLOUD_TPU_TASK_ID": "0",
    "TPU_PROCESS_ADDRESSES": None,
    "TPU_PROCESS_PORT": None,
}
"""Variables that name the processes of one slice, and their values for a process that has its devices to itself; None
for unset. Unset, the first two would be asked of a metadata server, which a container may not reach."""


def of_former_life(variables: Mapping[str, str]) -> list[str]:
    """Those of the variables by which libtpu would wait for processes of a slice that are gone, or not of this run."""
    return [name for name, value in variables.items() if _SLICES.fullmatch(name) or value != _ALONE.get(name, value)]


def of_this_life(variables: Mapping[str, str], processes: int) -> dict[str, str | None]:
    """Changes of `variables` for an island of so many processes on TPUs; None for unset.

    A scheduler sets such variables for one life of a job; a later life that inherits them would wait for the former
    one's processes. An island is one slice. Where it has several processes the variables that name these are needed.
    """
    slices = dict.fromkeys(name for name in variables if _SLICES.fullmatch(name))
    return {**slices, **{name: value for name, value in _ALONE.items() if name in variables and processes == 1}}


class Accelerators(NamedTuple):
    """The devices of one platform, by the numbers or names under which they are made visible."""

    platform: Platform
    ids: tuple[str, ...]


def find(environment: Mapping[str, str] = os.environ, root: Path = Path("/dev")) -> Accelerators | None:
    """The accelerators of this machine; None if jax has to compute on the CPU."""
    return usable(environment, _files(root), _installed())


def divided_here(variables: Mapping[str, str] = os.environ) -> Accelerators | None:
    """What the islands of this machine divide among them: its accelerators, or else the devices that XLA is told to
    make of its CPU; None where there are neither."""
    made = made_devices(variables)
    return find(variables) or (Accelerators("cpu", tuple(map(str, range(made)))) if made else None)


def device_files(root: Path = Path("/dev")) -> dict[Platform, int]:
    """The number of device files of each platform below /dev."""
    files = _files(root)
    return {platform: sum(form.fullmatch(name) is not None for name in files) for platform, form in _FILES.items()}


def _files(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in (*root.glob("*"), *root.glob("vfio/*"))]


def usable(environment: Mapping[str, str], files: Iterable[str], installed: Iterable[str]) -> Accelerators | None:
    """The usable accelerators, from the device files below /dev and the installed plugins of jax.

    As in CUDA, a negative number hides all that are named after it.
    """
    wanted = environment.get("JAX_PLATFORMS", "").split(",")[0]
    there, plugins = sorted(files), frozenset(installed)
    for platform in ("tpu", "cuda"):
        is_asked = not wanted or wanted == platform or (platform, wanted) == ("cuda", "gpu")
        count = sum(_FILES[platform].fullmatch(name) is not None for name in there)
        if is_asked and count and not plugins.isdisjoint(_PLUGINS[platform]):
            return _visible(platform, count, environment)
    return None


def gpus(environment: Mapping[str, str] = os.environ, root: Path = Path("/dev")) -> Accelerators | None:
    """The GPUs of this machine, for a framework that is not known here; None if there are none."""
    return _visible("cuda", device_files(root)["cuda"], environment)


def _visible(platform: Platform, count: int, environment: Mapping[str, str]) -> Accelerators | None:
    """Those of so many accelerators that the user lets a process see; None if none."""
    visible = environment.get(VISIBLE[platform])
    ids = [str(number) for number in range(count)] if visible is None else visible.split(",")
    named = (each.strip() for each in ids if each.strip())
    names = tuple(takewhile(lambda name: not name.startswith("-"), named))
    return Accelerators(platform, names) if names and count else None


def without_tpu(variables: Mapping[str, str], installed: Iterable[str], plugins: Iterable[str]) -> dict[str, str]:
    """The variables with which jax does not look for a TPU where none is: libtpu, which may be there as a compiler,
    would write some lines of errors. None where the user names a platform, or jax has a plugin that we do not know.

    `installed` are the plugins of `find` that are there, `plugins` the names of all others.
    """
    others = [name for name in plugins if not name.startswith("xla_cuda")]
    is_needed = "libtpu" in installed and not others and not variables.get(_PLATFORMS)
    return {_PLATFORMS: "cpu"} if is_needed else {}


def without_accelerators(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`without_tpu` for this machine, which has no accelerators that jax can use."""
    from importlib.metadata import entry_points

    plugins = [each.name for each in entry_points(group="jax_plugins")]
    return without_tpu(variables, _installed(), plugins)


def _installed() -> list[str]:
    return [name for names in _PLUGINS.values() for name in names if find_spec(name) is not None]


MEMORY_SHARE: Final = 0.9
"""Share of a GPU's memory for all processes that share it: the rest is for contexts and the compiler."""
MEMORY: Final = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE")
"""Variables for the share of a GPU's memory that a process takes at its start; jax refuses the first beside the
second."""
PROCESSES_PER_GPU_MAX: Final = 4
"""Enough to keep a GPU busy while some of them compute on their core; more would have less of its memory each. Not
measured: no GPU was at hand."""
_PLATFORMS: Final = "JAX_PLATFORMS"
_CORES: Final = "NPROC"
"""How many threads XLA's pool has; 1 where `processes.environment` set it."""
_FLAGS: Final = "XLA_FLAGS"
_CHIP_BOUNDS: Final = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
"""Layout of that many chips on one TPU host."""
_DOING: Final = "Opening an island"


@final
@dataclass(frozen=True, slots=True)
class Islands:
    """The islands of a machine.

    `platform`: that on which they compute, None for jax's default; `ids`: the devices of each, empty if it sees all;
    `sharing`: how many islands share a device; `devices`: how many an island has, if known.
    """

    platform: Platform | str | None
    ids: tuple[tuple[str, ...], ...]
    sharing: int = 1
    devices: int | None = None


def islands_of(here: Here, accelerators: Accelerators | None) -> Islands:
    """The islands of this machine; ConfigError if it has other devices than declared.

    Islands are numbered on their machine. Each has devices of its own, in the order of their numbers; where learners
    outnumber GPUs and the number of devices of an island is not set, several share one, and its memory. The evaluator
    is on the CPU unless requested otherwise, and then shares the devices of the first island.
    """
    count = max(here.islands_here, 1)
    declared = platform_of(here.kinds)
    if declared == "cpu" or (accelerators is None and declared is None):
        return Islands(declared, ((),) * count, devices=here.devices or None)
    if accelerators is not None and accelerators.platform == "cpu" and declared is not None:
        accelerators = None  # What is made of a CPU is no such device.
    if accelerators is None or declared not in (None, accelerators.platform):
        expected = f"devices of kind {here.kinds[0]!r}, as the machine was declared"
        there = (
            "none that jax can use"
            if accelerators is None
            else f"{len(accelerators.ids)} for {accelerators.platform!r}"
        )
        do = "Install what jax needs for them, or correct `device` of this machine in the cluster file."
        raise ConfigError(_DOING, expected, there, do)
    return _accelerated(count, here.devices, accelerators)


def _accelerated(count: int, declared: int, accelerators: Accelerators) -> Islands:
    """`count` islands on accelerators, of `declared` devices each, 0 if not declared."""
    ids, total = accelerators.ids, len(accelerators.ids)
    each = declared or max(total // count, 1)
    if each * count <= total:
        cut = tuple(ids[island * each : (island + 1) * each] for island in range(count))
        return Islands(accelerators.platform, cut, devices=each)
    if declared or accelerators.platform == "tpu":
        do = "Lower `islands` or `devices` of this machine, or run.learners; a TPU chip has one process."
        raise ConfigError(_DOING, f"{each * count} devices for {count} islands of {each}", str(total), do)
    shared = tuple((ids[island % total],) for island in range(count))
    return Islands(accelerators.platform, shared, sharing=-(-count // total), devices=1)


def learner_environment(
    islands: Islands, island: int, total: int, *, has_evaluator: bool, environment: Mapping[str, str]
) -> dict[str, str]:
    """The variables that a learner on this island sets.

    `total`: the machine's number of devices; `has_evaluator`: an evaluator is on them, too. Variables for a GPU's
    memory in the `environment` environment are kept.
    """
    if islands.platform is None:
        return {}
    if islands.platform == "cpu":
        if islands.ids[island]:
            return with_devices(len(islands.ids[island]), environment)
        counted = {} if islands.devices is None else {"JAX_NUM_CPU_DEVICES": str(islands.devices)}
        return {"JAX_PLATFORMS": "cpu", **counted}
    ids = islands.ids[island]
    variables = {"JAX_PLATFORMS": str(islands.platform)}
    if islands.platform == "tpu":
        return variables | _chips(ids, total)
    variables[VISIBLE["cuda"]] = ",".join(ids)
    sharing = islands.sharing + (has_evaluator and island == 0)
    if sharing > 1 and not any(name in environment for name in MEMORY):
        variables[MEMORY[0]] = f"{MEMORY_SHARE / sharing:.2f}"
    return variables


def compiling(processes: int, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables by which XLA compiles on as many cores as each of so many processes may have, unless the user's
    `variables` say how many; hosts on the CPU, which share cores, have one each (`processes.environment`).

    On one core gpt-124m took 110 s to compile for an H200 whose machine has 16.
    """
    is_ours = variables.get(_CORES, "1") == "1"
    return {_CORES: str(max(len(os.sched_getaffinity(0)) // processes, 1))} if is_ours else {}


def beside_accelerators(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Changes of `variables` for a process that computes on the CPU of a machine whose learners have accelerators: it
    may have their cores; None for unset."""
    is_ours = variables.get(_FLAGS, XLA_FLAGS) == XLA_FLAGS
    return {_PLATFORMS: "cpu", **compiling(1, variables), **({_FLAGS: None} if is_ours else {})}


def gives_way(layout: Sequence[TensorSpec]) -> bool:
    """Whether the evaluator of a model of this layout lets learners go first.

    An evaluation of a small model takes less than a second, and shows a run while it trains: evaluators of these keep
    their weight, and the one thread with which their losses are the same on any machine.
    """
    return sum(math.prod(tensor.shape) for tensor in layout) >= SMALL


def beside_learners(here: Here, variables: Mapping[str, str]) -> dict[str, str | None]:
    """Changes of `variables` for an evaluator that computes on the CPU cores of a machine whose learners compute there,
    too: it has a thread for each core that they do not need, and one where they need all; None for unset."""
    spare = len(os.sched_getaffinity(0)) - max(here.learners, here.islands) * max(here.devices, 1)
    computes = {_PLATFORMS: "cpu"}
    if spare < 2 or any(variables.get(name, ours) != ours for name, ours in _ONE_EACH.items()):
        return dict(computes)
    return {**computes, _CORES: str(spare), OMP_THREADS: str(spare), _FLAGS: None}


OMP_THREADS: Final = "OMP_NUM_THREADS"
_ONE_EACH: Final = {_FLAGS: XLA_FLAGS, _CORES: "1", OMP_THREADS: "1"}
"""What `processes.environment` sets, where the user has set nothing."""


def script_environment(
    accelerators: Accelerators | None,
    island: int,
    islands: int,
    devices: int = 0,
    *,
    has_evaluator: bool,
    environment: Mapping[str, str],
) -> dict[str, str]:
    """The variables of a process of the user's script, for one of so many islands on these GPUs: those that a learner
    of a task has, but that it may compute on the CPU. Where islands share a GPU they also bound its memory, in jax.
    Each island has so many `devices`, 0 where that is not declared; ConfigError for more than there are.

    `has_evaluator`: the script is the evaluator's, too, on the first island.
    """
    if accelerators is None:
        return {}
    total = len(accelerators.ids)
    cut = _accelerated(max(islands, 1), devices, accelerators)
    variables = learner_environment(cut, island, total, has_evaluator=has_evaluator, environment=environment)
    del variables[_PLATFORMS]
    return variables


def evaluator_environment(islands: Islands, total: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an evaluator that shares an island; ConfigError on TPUs."""
    if islands.platform == "tpu":
        do = "Leave run.evaluate_on out: a TPU chip has one process."
        raise ConfigError(_DOING, "an evaluator on the CPU beside learners on TPUs", "run.evaluate_on = 'island'", do)
    return learner_environment(islands, 0, total, has_evaluator=True, environment=environment)


def platform_of(kinds: Sequence[str]) -> str | None:
    """The platform of a kind of device, by its names; None if they do not identify it."""
    for kind in kinds:
        word = kind.casefold()
        if word == "cpu":
            return "cpu"
        if word.startswith("tpu"):
            return "tpu"
        if word.startswith("nvidia"):
            return "cuda"
    return None


def _chips(ids: Sequence[str], total: int) -> dict[str, str]:
    """The variables that make some chips of a TPU host visible, as a host of their own; empty for all chips."""
    if len(ids) == total:
        return {}
    if len(ids) not in _CHIP_BOUNDS:
        do = "Give islands 1, 2, 4 or 8 chips."
        raise ConfigError(_DOING, "as many chips as lie together on a host", str(len(ids)), do)
    return {
        VISIBLE["tpu"]: ",".join(ids),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _CHIP_BOUNDS[len(ids)],
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }


class ProcessPlaces(NamedTuple):
    """Places for processes that each carry out a whole run: `environments` has the variables that each sets.

    `platform` is None if jax decides, by the user's `JAX_PLATFORMS` if given; `devices` are those that are used, of an
    accelerator; `share` is the part of one's memory that a process has, None if nothing is set.
    """

    environments: tuple[Mapping[str, str], ...]
    platform: Platform | str | None
    devices: int = 0
    share: float | None = None


def process_places(
    accelerators: Accelerators | None, cores: int, runs: int, variables: Mapping[str, str]
) -> ProcessPlaces:
    """The places for `runs` processes on a machine with `cores`, at most one a core; `variables` are the user's.

    Without accelerators processes compute on the CPU, unless the user names another platform.

    A process that carries out a whole run has all of its learners, so one device is its island. A GPU is shared by a
    few such processes, each with an equal part of its memory; a TPU chip has one. A run in the user's own process takes
    all devices that there are.
    """
    count = max(min(cores, runs), 1)
    if accelerators is None:
        own = {} if variables.get(_PLATFORMS) else {_PLATFORMS: "cpu"}
        return ProcessPlaces((own,) * count, own.get(_PLATFORMS))
    total = len(accelerators.ids)
    count = min(count, total * (1 if accelerators.platform == "tpu" else PROCESSES_PER_GPU_MAX))
    sharing = -(-count // total)
    islands = Islands(
        accelerators.platform, tuple((accelerators.ids[place % total],) for place in range(count)), sharing, 1
    )
    environments = tuple(
        learner_environment(islands, place, total, has_evaluator=False, environment=variables) for place in range(count)
    )
    share = environments[0].get(MEMORY[0])
    return ProcessPlaces(
        environments, accelerators.platform, min(count, total), None if share is None else float(share)
    )


def process_environment(accelerators: Accelerators | None, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process, if it carries out a run with all accelerators that were `accelerators`.

    The CPU is named behind them, for what is computed there; that jax cannot use what comes first stays an error.
    """
    return {} if accelerators is None or variables.get(_PLATFORMS) else {_PLATFORMS: f"{accelerators.platform},cpu"}
