"""What a spare does before it is a host: it compiles, or reads, all that a learner calls, and then waits for a life.

Decides where a spare is of use: where learners compute in jax, on the cores of a machine that has memory for one more.
On an accelerator it would hold memory that learners need; what brings its own learner is imported by the fork server.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from isthmus.programs.engine.islands.claims import claim_island
from isthmus.programs.engine.islands.kept_programs import compile_once
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.environment import prepare_environment
from isthmus.programs.engine.run.host_process import are_made, has_accelerators, settle_on_core
from isthmus.runtime.graph.body import has
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.ids import LEARNER, Member, Replica
from isthmus.runtime.system.control_groups import memory_free
from isthmus.runtime.system.processes import follow_daemon, name_process

TITLE: Final = "isthmus spare"
AFTER_SECONDS: Final = 10.0
"""After the last host was forked: those that begin need the cores."""
MEMORY_MIN: Final = 1 << 30
"""Of the machine, free beside what a spare takes."""
STATE_BYTES: Final = 16
"""A parameter: value, two moments, and what the compiler holds."""


def body_of(plan: Plan, resolved: Any) -> Any | None:
    """The body of a learner's plan that a spare can warm, None if there is none; `resolved` makes an argument of it."""
    for node in plan.nodes:
        if has(node.body, "warm"):
            keywords = {name: resolved(value) for name, value in node.keywords.items()}
            body = node.body(*map(resolved, node.arguments), **keywords)
            return body if body.can_warm else None
    return None


def is_wanted(run_spec: spec.Spec) -> bool:
    """Whether hosts of this run may have a spare: each learner has one process, and computes on the CPU."""
    settings = run_spec.settings
    of_one = all(count == 1 for count in settings.processes) and not any(run_spec.elastic)
    have_devices = has_accelerators(run_spec.here) or are_made(run_spec.here)
    return settings.spare and of_one and LEARNER in run_spec.computing and not have_devices


def has_room(run_spec: spec.Spec) -> bool:
    """Whether the machine has memory for one now."""
    free = memory_free()
    parameters = sum(math.prod(tensor.shape) for tensor in run_spec.job.layout)
    return free is not None and free >= MEMORY_MIN + STATE_BYTES * parameters


def warm(folder: Path, run_spec: spec.Spec, body: Any) -> None:
    """Compile, in this process, which was forked for that."""
    name_process(TITLE)
    follow_daemon()
    prepare_environment(1)
    first = Replica(LEARNER, 0)
    claim_island(Member(first, 1), run_spec, folder)  # Of a machine without accelerators: this sets the environment.
    compile_once(folder, "spare", 0)
    settle_on_core(first, run_spec.here)  # XLA has as many threads as this process has cores.
    body.warm(run_spec.job.seed)
