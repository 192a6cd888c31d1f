"""`isthmus compile --here`: the functions of a run's learner, compiled by a process of its own for the devices that a
learner of this machine would have, and kept where the run will look for them.

The process prepares itself as a learner does: it claims an island, sets its environment, and asks the bodies of the run
what they call. What is there already is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from isthmus.ops.island.compiling import LoweredProgram, compile_all, lowered, telling
from isthmus.programs.engine.islands.claims import claim_island
from isthmus.programs.engine.islands.kept_programs import compile_once, read_compiled
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.environment import prepare_environment
from isthmus.programs.engine.request.spec import Spec
from isthmus.programs.wings.compile.answering import answer_one
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import LEARNER, Member, Replica


def main(arguments: list[str]) -> int:
    """Answer one request: a spec, and a folder for what was compiled."""
    return answer_one(arguments, answered)


def answered(request: Mapping[str, Any], doing: Callable[[str], None]) -> dict[str, Any]:
    """What was compiled and read for the learner of slot 0; `doing` is called with each function before."""
    run_spec = spec.read(request["spec"])
    sys.argv = list(run_spec.settings.argv)
    prepare_environment(1)
    member = Member(Replica(LEARNER, 0), 1)
    island = claim_island(member, run_spec, Path(request["folder"]))
    if island is not None and island.refusal:
        raise ConfigError("Compiling here", "an island for a learner", island.refusal, "Mend that first.")
    compile_once(Path(request["folder"]), "compile", 1)
    with telling(lambda function, awaits: doing(f"{function}, which {awaits} compiles" if awaits else function)):
        compile_all(_programs(run_spec, island))
    return {"programs": [list(each) for each in read_compiled(Path(request["folder"]))]}


def _programs(run_spec: Spec, island: Any) -> Iterator[LoweredProgram]:
    """The functions of the learner in slot 0, on the devices that it would have, as each is lowered."""
    from isthmus.ops.gang.mesh_devices import devices_of, unless_usual
    from isthmus.programs.wings.compile.worker import bodies_of

    devices = unless_usual(devices_of(island))
    for body in bodies_of(run_spec):
        yield from lowered(body.calls_on(devices, run_spec.job.seed, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
