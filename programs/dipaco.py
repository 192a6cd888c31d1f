"""DiPaCo (arXiv 2403.10616) without barriers: a model made of modules that many paths share.

A task says how its layers are cut into levels, and how many modules each level has. A path is a choice of one module a
level; slot n trains path n modulo their number, in all its lives, and has nothing of the other modules. The graph is
that of decoupled-diloco, whose fragments are each of one level and exist once a module; a round of one is of the
learners whose path has it, and its update goes to these. Everything else is as there: learners never wait. With one
module a level it is decoupled-diloco, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from isthmus.ops.exchange.fragments import Cut
from isthmus.ops.exchange.paths import PathParts, groups_of, path_parts
from isthmus.programs.decoupled import free_running, rules
from isthmus.programs.job import Job
from isthmus.programs.program_graph import ProgramGraph
from isthmus.programs.settings import checked, settings_of
from isthmus.programs.update_settings import setting_fault, shard_faults, subject
from isthmus.runtime.errors import Fault

NAME: Final = "dipaco"


def _rules(job: Job, values: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of settings that depend on the model, the learners, or each other."""
    paths = math.prod(job.modules)
    if not job.modules:
        do = "Set task.paths of the shipped task, or paths= and levels= of a Task; or train it by decoupled-diloco."
        yield Fault(f"Training {job.task} by {NAME}", "a task that says how many modules each level has", "none", do)
        return
    if not paths <= job.learners <= job.slots_max:
        expected = f"a learner for each of {paths} paths at least"
        found = f"{job.learners} learners of at most {job.slots_max}"
        do = "Add learners (run.learners), or take fewer modules: one that nobody trains stays as it began."
        yield Fault("Placing the paths of the model", expected, found, do)
        return
    yield from rules(NAME, job, values, _holders_min(job))
    try:
        parts = _parts(job, values["fragments"])
    except ValueError:
        least = len(groups_of(job.layout, job.modules))
        expected = f"at least {least}, one for each level and for what all paths share, or 'layer' or 'tensor'"
        do = "Choose one of these, or leave it out."
        yield setting_fault(NAME, "fragments", values["fragments"], expected, do)
        return
    yield from shard_faults(NAME, "shards", values["shards"], len(parts.whole))


def _holders_min(job: Job) -> int:
    """The learners of the path that has fewest, times the paths that share a module at least."""
    paths = math.prod(job.modules)
    return job.learners // paths * (paths // max(job.modules))


def _parts(job: Job, cut: Cut | None) -> PathParts:
    return path_parts(job.layout, job.modules, cut)


@checked(subject(NAME), _rules)
@settings_of(free_running)
def build(job: Job, **settings: Any) -> ProgramGraph:
    """The graph; ConfigError, with every fault, for settings out of range, and for a task without modules."""
    parts = _parts(job, settings.get("fragments"))
    return free_running(NAME, job, parts if parts.count > 1 else None, **settings)
