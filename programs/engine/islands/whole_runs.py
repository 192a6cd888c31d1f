"""The devices of processes that carry out whole runs by themselves: several at once, each on a device or part of one.

Such a process has all learners of its run, so one device is its island. A GPU is shared by a few processes, each with
an equal part of its memory; a TPU chip has one. A run in this process takes all devices that there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from isthmus.programs.engine.islands.environment import MEMORY, Accelerators, Islands, Platform, learner_environment

PROCESSES_PER_GPU_MAX: Final = 4
"""Enough to keep a GPU busy while some of them compute on their core; more would have less of its memory each. Not
measured: no GPU was at hand."""
_PLATFORMS: Final = "JAX_PLATFORMS"


class Places(NamedTuple):
    """Places for processes that each carry out a whole run: `environments` has the variables that each sets.

    `platform` is None if jax decides, by the user's `JAX_PLATFORMS` if given; `devices` are those that are used, of an
    accelerator; `share` is the part of one's memory that a process has, None if nothing is set.
    """

    environments: tuple[Mapping[str, str], ...]
    platform: Platform | str | None
    devices: int = 0
    share: float | None = None


def places(found: Accelerators | None, cores: int, runs: int, given: Mapping[str, str]) -> Places:
    """The places for `runs` processes on a machine with `cores`, at most one a core; `given` are the user's variables.

    Without accelerators processes compute on the CPU, unless the user names another platform.
    """
    count = max(min(cores, runs), 1)
    if found is None:
        own = {} if given.get(_PLATFORMS) else {_PLATFORMS: "cpu"}
        return Places((own,) * count, own.get(_PLATFORMS))
    total = len(found.ids)
    count = min(count, total * (1 if found.platform == "tpu" else PROCESSES_PER_GPU_MAX))
    sharing = -(-count // total)
    islands = Islands(found.platform, tuple((found.ids[place % total],) for place in range(count)), sharing, 1)
    environments = tuple(
        learner_environment(islands, place, total, has_evaluator=False, given=given) for place in range(count)
    )
    share = environments[0].get(MEMORY[0])
    return Places(environments, found.platform, min(count, total), None if share is None else float(share))


def process_environment(found: Accelerators | None, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process, if it carries out a run with all accelerators that were `found`.

    The CPU is named behind them, for what is computed there; that jax cannot use what comes first stays an error.
    """
    return {} if found is None or given.get(_PLATFORMS) else {_PLATFORMS: f"{found.platform},cpu"}
