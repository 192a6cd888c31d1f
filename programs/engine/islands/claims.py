"""The island of this machine that a host's process uses: chosen, claimed, and written into the environment before jax
starts a backend.

Decides which island a learner gets: the first that no living process has.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, final

from isthmus.programs import wing_table
from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.islands.environment import (
    Islands,
    evaluator_environment,
    islands_of,
    learner_environment,
    platform_of,
    process_environment,
)
from isthmus.programs.engine.request.environment import has_backend, with_devices
from isthmus.programs.engine.request.spec import Spec
from isthmus.programs.program_graph import EVALUATOR
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.host.contract import ONE_PROCESS, IslandDevices, IslandProcesses
from isthmus.runtime.ids import LEARNER, Member, leader
from isthmus.runtime.system.disk import opened_at_end
from isthmus.runtime.system.locks import FileLock

if TYPE_CHECKING:
    from isthmus.programs.engine.request.spec import Spec


class _Held(NamedTuple):
    """A file, and the lock on it."""

    file: BinaryIO
    lock: FileLock

    def close(self) -> None:
        """Release the lock, if this process has it."""
        self.lock.release()
        self.file.close()


@final
class IslandClaim:
    """An island that this process has, until it ends."""

    def __init__(self, island: int, names: Sequence[str], locks: list[_Held]) -> None:
        self.island, self.names, self._locks = island, tuple(names), locks

    def close(self) -> None:
        """Release the claim."""
        for lock in self._locks:
            lock.close()


def claim(islands: Sequence[Sequence[str]], folder: Path | None = None) -> IslandClaim:
    """The first free island; each is given as the names of the resources that it needs for itself.

    ConfigError if none is free, OSError where that cannot be found out.

    An island is a locked file, for all runs of a user on this machine. The kernel releases a lock when its process
    ends, for whatever reason, so no ownership has to be recorded: a daemon may die, and be followed by another, and a
    learner's next life finds the island of its last one free.
    """
    folder = _folder() if folder is None else folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise ConfigError("Taking an island", f"{folder}, of this user", "another user's", "Remove it.")
    for number, names in enumerate(islands):
        locks = _locked(folder / f"{name}.lock" for name in names)
        if locks is not None:
            return IslandClaim(number, names, locks)
    do = "End what has them, or start fewer learners here: run.learners, or `islands` of this machine."
    raise ConfigError("Taking an island", f"one of {len(islands)} that is free", "all of them taken", do)


def _locked(paths: Iterable[Path]) -> list[_Held] | None:
    """These files, locked; None, and none locked, if another process has one."""
    with ExitStack() as held:
        locks: list[_Held] = []
        for path in paths:
            file = opened_at_end(path)
            locks.append(_Held(file, FileLock(file.fileno(), path)))
            held.callback(locks[-1].close)
            if not locks[-1].lock.take():
                return None
        held.pop_all()
    return locks


def _folder() -> Path:
    """The folder of this user's locks."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"isthmus-islands-{os.getuid()}"


LOCKS: Final = "islands"
"""The folder of a run's own locks."""
_CLAIMS: Final[list[IslandClaim]] = []
"""Held until this process ends."""


def claim_island(member: Member, run_spec: Spec, folder: Path) -> IslandDevices | None:
    """The island of a host that computes, None for all that jax finds; sets the environment of this process for it.

    The island carries a fault, if any, and the body that uses the island raises it. Accelerators are claimed for all
    runs of a user; devices that are made of a CPU, which each run makes anew, for that of this folder.
    """
    is_on_cpu = run_spec.settings.evaluate_on == "cpu"
    replica = leader(member.replica)
    if replica.role not in (LEARNER, EVALUATOR) or replica.role not in run_spec.computing:
        return None
    accelerators = environment.divided_here()
    is_made = accelerators is not None and accelerators.platform == "cpu"
    if replica.role == EVALUATOR and is_on_cpu:
        is_alone = accelerators is None or is_made or platform_of(run_spec.here.kinds) == "cpu"
        if is_made:
            set_environment(with_devices(1, os.environ))
        set_environment(_beside(run_spec) if is_alone else environment.beside_accelerators(os.environ))
        return None
    if accelerators is None:
        set_environment(environment.without_accelerators())
    total = 0 if accelerators is None else len(accelerators.ids)
    try:
        islands = islands_of(run_spec.here, accelerators)
        if replica.role == EVALUATOR:
            set_environment(evaluator_environment(islands, total, os.environ))
            return None
        number = _claimed(islands, folder if is_made else None)
        is_shared = not is_on_cpu
        size = run_spec.processes_of(replica.slot)
        if islands.platform == "tpu":
            set_environment(environment.of_this_life(os.environ, size))
        set_environment(learner_environment(islands, number, total, has_evaluator=is_shared, environment=os.environ))
        if accelerators is not None and islands.platform == accelerators.platform != "cpu":
            set_environment(environment.compiling(len(islands.ids), os.environ))
        processes = _processes(member, run_spec)
    except (ConfigError, OSError) as error:
        return IslandDevices(refusal=str(error))
    if islands.platform is None:
        return IslandDevices(processes=processes) if size > 1 else None
    kinds = run_spec.here.kinds if platform_of(run_spec.here.kinds) == islands.platform else ()
    return IslandDevices(kinds, islands.devices, processes=processes)


def claimed() -> list[str]:
    """The names of the resources that this process has claimed."""
    return [name for held in _CLAIMS for name in held.names]


def _processes(member: Member, run_spec: Spec) -> IslandProcesses:
    """Those of a learner's island, as its host has them; OSError where it cannot await them."""
    slot = leader(member.replica).slot
    size, address = run_spec.processes_of(slot), run_spec.here.address
    if run_spec.is_elastic(slot):
        made: IslandProcesses = wing_table.island_kind("elastic")(member, size, address)
        return made
    if size == 1:
        return ONE_PROCESS
    from isthmus.programs.engine.islands.gang import GangOfProcesses  # Few islands have several processes.

    return GangOfProcesses(member, size, address)


def _beside(run_spec: Spec) -> Mapping[str, str | None]:
    """The variables of an evaluator on the cores on which learners compute."""
    if environment.gives_way(run_spec.job.layout):
        return environment.beside_learners(run_spec.here, os.environ)
    return {"JAX_PLATFORMS": "cpu"}


def take_all() -> None:
    """Let this process have all accelerators of the machine, for a run in it; no-op where jax has a backend already."""
    if not has_backend():
        accelerators = environment.find()
        more = environment.without_accelerators() if accelerators is None else {}
        set_environment({**more, **process_environment(accelerators, os.environ)})


def would_take() -> bool:
    """Whether this process would take accelerators that are there, if it computed anything."""
    return not has_backend() and environment.find() is not None


def shares(devices: int, learners: int) -> list[IslandDevices]:
    """The islands of learners that share one process: own devices for each, as far as there are enough."""
    each = max(devices // max(learners, 1), 1)
    return [IslandDevices(devices=each, begin=learner * each % (devices // each * each)) for learner in range(learners)]


def set_environment(variables: Mapping[str, str | None]) -> None:
    """Set variables, None for unset, for a jax without a backend, which may be imported already: by a fork server."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    jax: Any = sys.modules.get("jax")
    if jax is not None and (platforms := variables.get("JAX_PLATFORMS")) is not None:
        jax.config.update("jax_platforms", platforms)
    if jax is not None and (count := variables.get("JAX_NUM_CPU_DEVICES")) is not None:
        jax.config.update("jax_num_cpu_devices", int(count))


def _claimed(islands: Islands, folder: Path | None) -> int:
    """The number of an island that no other process has; 0 if islands do not differ in their devices. `folder` is that
    of the locks, by default of those of this user."""
    if not any(islands.ids):
        return 0
    _CLAIMS.append(claim(_needs(islands), folder and folder / LOCKS))
    return _CLAIMS[-1].island


def _needs(islands: Islands) -> Sequence[Sequence[str]]:
    """The resources that each island needs for itself: its devices or, if several share one, a place on it."""
    singly = islands.sharing == 1
    return [
        [f"{islands.platform}-{name}" + ("" if singly else f"-{islands.ids[:number].count(ids)}") for name in ids]
        for number, ids in enumerate(islands.ids)
    ]
