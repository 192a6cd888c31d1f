"""The memory of this machine, or of the container that it is, that a run takes here at least.

A run whose learners and shards do not fit would be ended by the kernel some steps later, a learner at a time. So it is
refused before it starts where what is certain does not fit: of each learner on CPU cores its state and a gradient, of
the syncer values, momentum and what it has published. Activations, batches and processes come on top. Where there are
accelerators learners are left out, because their memory is not the machine's.
"""

from __future__ import annotations

from typing import Final

from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.request.model_sizes import FLOAT32_BYTES, learner_bytes, parameter_count
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.results.words import size
from isthmus.programs.program_graph import SYNCER
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.control_groups import memory_most

OF_SYNCER: Final = 3
"""Times the values, in all shards."""
PLENTY: Final = 32
"""Times the values, for each learner and the syncer: where there is so much nothing has to be computed."""


def with_memory(request: Request) -> Request:
    """This request; ConfigError if this machine, or the container that it is, has less than its hosts need at least."""
    learners, values, most = request.job.learners, FLOAT32_BYTES * parameter_count(request), memory_most()
    if PLENTY * (learners + 1) * values <= most:
        return request
    need = OF_SYNCER * values if any(role.name == SYNCER for role in request.graph.roles) else 0
    on_cores = not any(environment.device_files().values())
    need += learners * learner_bytes(request) if on_cores else 0
    if need > most:
        whom = f"{learners} learner{'' if learners == 1 else 's'} and the syncer" if on_cores else "the syncer"
        raise ConfigError(
            f"Placing {whom} on this machine",
            f"{size(need)} of memory, which they need at least",
            f"{size(most)}, all that the machine or its container may have",
            "Take fewer learners or a smaller model, raise the container's limit, or train on several machines.",
        )
    return request
