"""A script is asked for its model before its run, on a machine that will run it.

Names and shapes of the leaves, and the tokens of a step, are what a script tells with its first step; a request can
only be prepared with them. The command that prepares it may be anywhere, and neither it nor the home need have the
script, or its framework. So the command asks the home, again and again, and the home a machine of the run, whose daemon
starts the script once, up to that step:

    command --- ask-script ---> home --- ask-script ---> the first machine of the run with islands
            <--- no model yet, or the model, or faults ---

Decides which machine that is: of those that the cluster file gives islands the first one, once all of them permit and
have the script; else the first that is linked with islands to offer, and permits it. A question that nobody repeats is
forgotten, and its script ended.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final, final

from isthmus.programs.engine.cluster.handover import MachineSite
from isthmus.programs.engine.cluster.permitted_scripts import checked_digest
from isthmus.programs.engine.machine.client import ASK_SCRIPT
from isthmus.programs.engine.machine.links import HomeAddress, UnansweredError
from isthmus.programs.engine.machine.readiness import LinkRequest, answer_of
from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.programs.engine.request.reference import script_of
from isthmus.programs.engine.run.script_processes import devices_of
from isthmus.programs.loop_script import LoopScript
from isthmus.programs.loop_task import AskedScript, ScriptEndError
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.processes import environment
from isthmus.runtime.wire.control_messages import Message

UNHEARD_SECONDS: Final = 15.0
"""After which a question is forgotten: it is repeated several times a second."""
LOOK_SECONDS: Final = 1.0
ASKED_MAX: Final = 8
"""Scripts that a machine starts at once, to be asked."""
ANSWER_SECONDS_MAX: Final = 60.0
"""For a machine to look for the script, and to start it."""


@dataclass(slots=True)
class _Question:
    """A command's question, at the home: the machine that was asked, '' for none yet, and why daemons do not start the
    script."""

    heard_at: float
    machine: str = ""
    refused: dict[str, tuple[Fault, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Asked:
    """A script that was started here, until its answer is there."""

    heard_at: float
    process: AskedScript | None
    digest: str
    answer: dict[str, Any] | None = None
    faults: tuple[Fault, ...] = ()


@final
class AskedScripts(DaemonService):
    """What a daemon answers about scripts: as a home, and as a machine that starts them."""

    messages = {ASK_SCRIPT: "ask"}  # noqa: RUF012
    home_messages = {ASK_SCRIPT: "answer"}  # noqa: RUF012

    def __init__(self) -> None:
        self._questions: dict[str, _Question] = {}
        self._asked: dict[tuple[str, str], _Asked] = {}

    def start(self, machine: ServedMachine) -> None:
        self._machine = machine
        machine.later(LOOK_SECONDS, self._look)

    def close(self) -> None:
        for asked in self._asked.values():
            if asked.process is not None:
                asked.process.close()
        self._asked.clear()

    def _look(self) -> None:
        """Forget what nobody asks any more."""
        self._machine.later(LOOK_SECONDS, self._look)
        since = time.monotonic() - UNHEARD_SECONDS
        self._questions = {key: each for key, each in self._questions.items() if each.heard_at > since}
        for key in [key for key, each in self._asked.items() if each.heard_at <= since]:
            process = self._asked.pop(key).process
            if process is not None:
                process.close()

    # -- at the home ---------------------------------------------------------------------------------------------------

    async def ask(self, message: Message) -> Message:
        """The model of a script, or None while it is not known, and the machine that was asked; ConfigError for a
        script that a machine of the run does not permit or have, or that makes no step."""
        number = str(message["asking"])
        question = self._questions.setdefault(number, _Question(0.0))
        question.heard_at = time.monotonic()
        task, here = str(message["task"]), HomeAddress(**message["home"])
        sites = [MachineSite.read(site) for site in message["sites"]]
        asked = {"type": ASK_SCRIPT, "asking": number, "task": task, "starts": False, "islands": 1}
        if not question.machine and sites:
            await self._check(sites, here, asked)
            question.machine = sites[0].name
        elif not question.machine:
            question.machine = await self._first_offering(question, here, asked)
        model, digest = None, ""
        if question.machine:
            islands = next((site.islands for site in sites if site.name == question.machine), 0) or 1
            try:
                answer = await self._of(question.machine, here, {**asked, "starts": True, "islands": islands})
                model, digest = answer["model"], str(answer["digest"])
            except ConfigError:
                if sites or self._machine.neighbours.links.is_up(question.machine):
                    raise
                question.machine = ""  # It is gone, and another one may come.
        question.heard_at = time.monotonic()
        refusals = [list(fault) for faults in question.refused.values() for fault in faults]
        answer = {"model": model, "machine": question.machine, "digest": digest, "refusals": refusals}
        return {"type": ASK_SCRIPT, **answer}

    async def _check(self, sites: list[MachineSite], here: HomeAddress, asked: Message) -> None:
        """ConfigError with the faults of all of these machines, which may not start the script, or do not have it."""

        async def faults_of(site: MachineSite) -> tuple[Fault, ...]:
            if site.name != self._machine.name:
                request = LinkRequest(site, here, asked)
                return (await answer_of(self._machine.neighbours.links, request, self._machine.keys))[0]
            try:
                await self.answer(here, asked)
            except ConfigError as error:
                return tuple(error.faults)
            return ()

        if faults := [fault for each in await asyncio.gather(*map(faults_of, sites)) for fault in each]:
            raise ConfigError.of(faults)

    async def _first_offering(self, question: _Question, here: HomeAddress, asked: Message) -> str:
        """The first machine that is linked, offers islands, and may start the script; '' while there is none."""
        links = self._machine.neighbours.links

        async def refusal(name: str) -> ConfigError | None:
            try:
                await self._of(name, here, asked)
            except ConfigError as error:
                return error
            return None

        names = [name for name in links.offering() if links.instance(name) not in question.refused]
        told = dict(zip(names, await asyncio.gather(*map(refusal, names)), strict=True))
        for name, error in told.items():
            if error is not None and not isinstance(error, UnansweredError):
                question.refused[links.instance(name)] = tuple(error.faults)
                self._machine.tell(f"machine {name} is not asked for the model of a script: {error}")
        return next((name for name, error in told.items() if error is None), "")

    async def _of(self, name: str, here: HomeAddress, asked: Message) -> Message:
        """The answer of a machine; ConfigError for a refusal."""
        if name == self._machine.name:
            return await self.answer(here, asked)
        return await self._machine.neighbours.links.request(name, asked, ANSWER_SECONDS_MAX)

    # -- at a machine that starts it -----------------------------------------------------------------------------------

    async def answer(self, home: HomeAddress, message: Message) -> Message:
        """The model of a script, None while it is not known; ConfigError if its owner does not permit it, it is not
        here, or makes no step."""
        name, task, number = self._machine.name, str(message["task"]), str(message["asking"])
        script = script_of(task)
        if script is None:
            raise ValueError(f"no script: {task[:200]!r}")
        key = home.identity, number
        asked = self._asked.get(key)
        if asked is None:
            if faults := list(self._machine.config.scripts.faults(script, name)):
                self._machine.tell(f"refused a script of {home.name}: {faults[0].found}; {faults[0].remedy}")
                raise ConfigError.of(faults)
            digest = await self._machine.loop.run_in_executor(None, checked_digest, task, name)
            if not message["starts"]:
                return {"type": ASK_SCRIPT, "model": None, "digest": digest}
            asked = self._asked.get(key) or self._begin(script, digest, key, int(message["islands"]))
            self._machine.tell(f"starts {script.name} up to its first step, for a run of {home.name}")
        asked.heard_at = time.monotonic()
        if asked.process is not None and asked.process.wait(0.0):
            self._end(asked, asked.process, home)
        if asked.faults:
            raise ConfigError.of(asked.faults)
        return {"type": ASK_SCRIPT, "model": asked.answer, "digest": asked.digest}

    def _begin(self, script: LoopScript, digest: str, key: tuple[str, str], islands: int) -> _Asked:
        doing, name = f"Asking {script.name} for its model", self._machine.name
        if len(self._asked) >= ASKED_MAX:
            found = f"{len(self._asked)} that are asked already"
            raise ConfigError(doing, f"room on the machine {name!r}", found, "Wait until these have ended.")
        variables = {**environment(computes=True), **devices_of(0, max(islands, 1), has_evaluator=True)}
        try:
            process = AskedScript(script, variables)
        except OSError as error:
            do = f"Look at what the machine {name!r} has left: memory, processes, descriptors."
            raise ConfigError(doing, f"a process on the machine {name!r}", str(error), do) from error
        self._asked[key] = asked = _Asked(time.monotonic(), process, digest)
        return asked

    def _end(self, asked: _Asked, process: AskedScript, home: HomeAddress) -> None:
        """Take what a script has told, or how it has ended, which has ended."""
        asked.process = None
        try:
            asked.answer = process.told().answer()
        except ScriptEndError as error:
            asked.faults = self._told_of_end(process, error, home)
        except ConfigError as error:
            asked.faults = tuple(self._placed(fault) for fault in error.faults)
        finally:
            process.close()

    def _told_of_end(self, process: AskedScript, error: ScriptEndError, home: HomeAddress) -> tuple[Fault, ...]:
        """How it has ended, for the home: without what it has printed, where that stays here."""
        script, lines = process.script, process.last_lines()[-LINES_TOLD:]
        self._machine.tell("\n  ".join([f"{script.name} has ended without a step, for a run of {home.name}", *lines]))
        if self._machine.config.error_texts != "local":
            return tuple(self._placed(fault) for fault in error.faults)
        do = f"Look at what its daemon prints on {self._machine.name}, which keeps it, or run it there alone."
        return tuple(self._placed(fault._replace(found=error.how, remedy=do)) for fault in error.faults)

    def _placed(self, fault: Fault) -> Fault:
        return fault._replace(action=f"{fault.action} on the machine {self._machine.name!r}")


LINES_TOLD: Final = 20
"""Of what a script has printed last, to the owner of the machine."""
