"""A command's question for the model of a script: it asks the home of its run, again and again (`asked_scripts`)."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final, final

from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.handover import MachineSite
from isthmus.programs.engine.cluster.permitted_scripts import are_unlike
from isthmus.programs.engine.machine.client import ASK_SCRIPT, DaemonClient
from isthmus.programs.engine.machine.links import HomeAddress
from isthmus.programs.engine.request.reference import called
from isthmus.programs.job import RunSlots
from isthmus.programs.loop_script import LOOP, LoopScript
from isthmus.programs.loop_task import ModelFound
from isthmus.runtime.errors import ConfigError, Fault, printable, shortened
from isthmus.runtime.ids import LEARNER
from isthmus.runtime.supervision.user_code import FIRST_STEP

ASK_SECONDS: Final = 0.3
"""Between two questions."""


@final
class ScriptQuestion:
    """How the script of a request is asked for its model by the machines of a cluster (`Asking`).

    `digest` is that of the script on the `machine` that was asked, once it has answered.
    """

    def __init__(self, daemon: DaemonClient, cluster: Cluster) -> None:
        self._daemon, self._cluster = daemon, cluster
        self._found: dict[LoopScript, ModelFound] = {}
        self.machine = self.digest = self._name = ""

    def __call__(self, script: LoopScript, run: RunSlots) -> ModelFound:
        if script not in self._found:
            self._found[script] = self._ask(script)
        return self._found[script]

    def warnings(self, digests: Mapping[str, str]) -> Iterator[Fault]:
        """That machines have other scripts at the path than the one that was asked."""
        if unlike := sorted(name for name, digest in digests.items() if are_unlike(digest, self.digest)):
            yield Fault(
                f"Comparing {self._name} on the machines",
                f"what {self.machine!r} has at its path, {self.digest[:8]}",
                ", ".join(f"{digests[name][:8]} on {name!r}" for name in unlike),
                "Copy it there if they are to train alike; each machine runs its own.",
            )

    def _ask(self, script: LoopScript) -> ModelFound:
        """What a machine has told; ConfigError with the faults of all that were asked, or of the cluster file."""
        self._name = script.name
        if faults := list(self._own_faults()):
            raise ConfigError.of(faults)
        machines = [each for each in self._cluster.machines if each.offers(LEARNER) and each.islands != 0]
        sites = [asdict(MachineSite.of(each)) for each in machines if not self._is_open or each.islands]
        home = HomeAddress(self._daemon.name, self._daemon.address, self._daemon.server_key)
        question = {"type": ASK_SCRIPT, "asking": secrets.token_hex(8), "task": called(LOOP, script.keywords)}
        begun, told = time.monotonic(), set[str]()
        while True:
            answer = self._daemon.say({**question, "sites": sites, "home": home.as_data()})
            self.machine = str(answer["machine"])
            if answer["model"] is not None:
                self.digest = str(answer["digest"])
                return self._checked(answer["model"])
            if self.machine or not sites:
                self._tell(script, told, time.monotonic() - begun)
            for fault in answer.get("refusals", []):
                _say(str(Fault(*map(str, fault))), told)
            time.sleep(ASK_SECONDS)

    def _own_faults(self) -> Iterator[Fault]:
        """What of the cluster file does not go with a script."""
        for name in dict.fromkeys(each.island for each in self._cluster.machines if each.island is not None):
            do = "Leave `island` out: each island of a script is one machine, on which --ranks N starts N processes."
            doing = f"Reading island {name!r} of {self._cluster.file}"
            yield Fault(doing, "islands of one machine, beside --loop", "one of several", do)
        for name, own in self._cluster.tasks.items():
            do = "Leave `task` and `framework` of machines out: the script's loop is all learners'."
            yield Fault(
                f"Reading machine {name!r} of {self._cluster.file}", "no task of its own, beside --loop", own, do
            )

    @property
    def _is_open(self) -> bool:
        """Whether the run may begin without learners: machines are to join."""
        return bool(self._cluster.sections.get("run", {}).get("learners") == 0)

    def _checked(self, model: Mapping[str, object]) -> ModelFound:
        try:
            return ModelFound.checked(model)
        except (LookupError, TypeError, ValueError) as error:
            doing, do = f"Asking {self._name} for its model", "Use one version of isthmus everywhere."
            found = shortened(str(error), 300)
            raise ConfigError(doing, f"a model, told by the machine {self.machine!r}", found, do) from None

    def _tell(self, script: LoopScript, told: set[str], seconds: float) -> None:
        """Say once that this waits for a machine, and once that a script takes long."""
        if not self.machine:
            line = f"waits for a machine that offers islands, to ask {script.name} for its model: isthmus join"
        elif seconds > FIRST_STEP / 1e9:
            line = f"{script.name} has not come to its first island.step(...) on {self.machine}, and is waited for"
        else:
            return
        _say(line, told)


def _say(line: str, told: set[str]) -> None:
    """Write a line to standard error, once."""
    if line not in told:
        told.add(line)
        sys.stderr.write(f"isthmus: {printable(line)}\n")
        sys.stderr.flush()
