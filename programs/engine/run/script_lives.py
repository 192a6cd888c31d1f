"""How a machine starts the processes of a run whose hosts are a user's script: each a life of a learner, or evaluates.

Decides which island of the machine a life has, and that nothing starts which the machine's owner does not permit by
then. The process itself is started by `script_processes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias, final

from isthmus.programs.engine.islands.island_numbers import IslandNumbers
from isthmus.programs.engine.request.spec import Spec
from isthmus.programs.engine.run.logs import log_of
from isthmus.programs.engine.run.script_processes import ScriptsAhead, devices_of, spawn_script, watching
from isthmus.programs.loop_script import LoopLife, LoopScript
from isthmus.programs.program_graph import EVALUATOR
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import LEARNER, Member, Replica

Forbids: TypeAlias = Callable[[LoopScript], str]


def permitted(script: LoopScript) -> str:
    """Nothing against it: a run of this machine's own user starts what that user has named."""
    return ""


@final
class ScriptLives:
    """Those of the run in `folder`. `ahead`: processes that wait for their lives; `forbids` returns why the owner of
    this machine does not let it start the script, '' where the owner does."""

    def __init__(
        self, folder: Path, run_spec: Spec, script: LoopScript, ahead: ScriptsAhead | None, forbids: Forbids
    ) -> None:
        here = run_spec.here
        self._folder, self._script, self._ahead, self._forbids = folder, script, ahead, forbids
        self._learners, self._devices = here.islands_here, here.devices
        self._variables = watching(script, run_spec.settings.rank_seconds)
        self._islands = IslandNumbers(folder, self._learners)
        self._evaluates = EVALUATOR in run_spec.computing
        self._has_evaluator = log_of(folder, Replica(EVALUATOR, 0)).exists()
        """Whether an evaluator was ever started here."""
        if ahead is not None:
            ahead.end(self._learners)  # Of more slots than the run begins with.

    def prepare(self, wanted: Iterable[Replica]) -> None:
        """Learn of hosts that are about to be started."""
        self._has_evaluator |= any(replica.role == EVALUATOR for replica in wanted)

    def start(self, member: Member, endpoint: str) -> int:
        """Have a process of the script be a host; its pid. OSError where the owner of this machine forbids that, where
        it lacks the devices, or there is no room for the process."""
        replica = member.replica
        life = LoopLife(str(self._folder), str(replica), member.incarnation, endpoint)
        log = log_of(self._folder, replica)
        if self._ahead is not None and (pid := self._ahead.begin(life, log)) is not None:
            return pid
        if why := self._forbids(self._script):
            raise OSError(why)
        island = self._islands.of(replica) if replica.role == LEARNER else 0
        has_evaluator = self._evaluates and self._has_evaluator
        try:
            devices = devices_of(island, self._learners, self._devices, has_evaluator=has_evaluator)
        except ConfigError as error:
            raise OSError(str(error)) from error
        return spawn_script(self._script, life, log, {**devices, **self._variables})

    def close(self) -> None:
        """End those that wait."""
        if self._ahead is not None:
            self._ahead.end()
