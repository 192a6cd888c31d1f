"""Which machine is asked for the model of a script, and what becomes of the question, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.handover import MachineSite
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.cluster.permitted_scripts import PermittedScripts
from isthmus.programs.engine.cluster.placement import Machine
from isthmus.programs.engine.machine import asked_scripts, script_question
from isthmus.programs.engine.machine.asked_scripts import AskedScripts
from isthmus.programs.engine.machine.client import ASK_SCRIPT, DaemonClient
from isthmus.programs.engine.machine.links import HomeAddress, UnansweredError
from isthmus.programs.engine.machine.script_question import ScriptQuestion
from isthmus.programs.engine.request.reference import called
from isthmus.programs.job import RunSlots
from isthmus.programs.loop_script import LOOP, LoopScript
from isthmus.programs.loop_task import ModelFound, ScriptEndError
from isthmus.programs.task import ModelLeaf
from isthmus.runtime.errors import ConfigError, Fault

FOUND = ModelFound((ModelLeaf("w", (4, 3), "float32", "rda"),), (("**", "rda"),), 8, 64, 96)
HOME = HomeAddress("alpha", "tcp://127.0.0.1:1")


@dataclass
class Script:
    """A process of a script, as the service sees it."""

    script: LoopScript
    variables: dict[str, str]
    has_ended: bool = False
    told_of: ModelFound | ConfigError = FOUND
    is_closed: bool = False

    def wait(self, seconds: float) -> bool:
        return self.has_ended

    def told(self) -> ModelFound:
        if isinstance(self.told_of, ConfigError):
            raise self.told_of
        return self.told_of

    def last_lines(self) -> list[str]:
        return ["secret words"]

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Links:
    """Machines that are linked, and how each answers."""

    answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def offering(self) -> list[str]:
        return list(self.answers)

    def instance(self, name: str) -> str:
        return f"{name}-1"

    def is_up(self, name: str) -> bool:
        return name in self.answers

    async def request(self, name: str, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.asked.append(name)
        return self.answers[name](message)


class Place:
    """A service of the daemon alpha, whose later calls are kept."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, texts: Any = "home") -> None:
        (folder / "train.py").write_text("")
        self.script = LoopScript(str(folder / "train.py"), (), str(folder))
        self.started: list[Script] = []
        self.now, self.later, self.lines = 0.0, list[Callable[[], None]](), list[str]()
        self.links = Links()
        permits = PermittedScripts.of(["train.py"], (), folder)
        monkeypatch.setattr(asked_scripts.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(asked_scripts, "AskedScript", self._start)
        self.service = AskedScripts()
        self.machine = SimpleNamespace(
            name="alpha",
            config=MachineConfig(scripts=permits, error_texts=texts),
            keys=None,
            neighbours=SimpleNamespace(links=self.links),
            tell=self.lines.append,
            later=lambda seconds, call: self.later.append(call),
        )
        self.service.start(self.machine)

    def _start(self, script: LoopScript, variables: dict[str, str]) -> Script:
        self.started.append(Script(script, variables))
        return self.started[-1]

    def ask(self, *sites: str, number: str = "1") -> dict[str, Any]:
        """A command's question, where these machines have islands."""
        message = {"type": ASK_SCRIPT, "asking": number, "task": called(LOOP, self.script.keywords)}
        message |= {"sites": [asdict(MachineSite(site, islands=2)) for site in sites], "home": HOME.as_data()}

        async def asked() -> dict[str, Any]:
            self.machine.loop = asyncio.get_running_loop()
            return await self.service.ask(message)

        return asyncio.run(asked())

    def look(self) -> None:
        self.later.pop(0)()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def refusing(message: dict[str, Any]) -> dict[str, Any]:
    raise ConfigError("Handing a script", "one that is listed", "another", "Let its owner add it.")


def answering(message: dict[str, Any]) -> dict[str, Any]:
    return {"model": FOUND.answer() if message["starts"] else None, "digest": "d1"}


def test_the_first_machine_with_islands_starts_it_once_and_tells_what_it_has_told(place: Place) -> None:
    place.links.answers["beta"] = answering
    assert place.ask("alpha", "beta")["model"] is None
    assert place.links.asked == ["beta"], "whether it has the script"
    assert place.ask("alpha", "beta")["model"] is None
    (script,) = place.started
    script.has_ended = True
    for _ in range(2):  # An answer may be lost.
        answer = place.ask("alpha", "beta")
        assert ModelFound.checked(answer["model"]) == FOUND
        assert answer["machine"] == "alpha"
    assert len(place.started) == 1
    assert script.is_closed
    assert place.links.asked == ["beta"]


def test_nothing_is_started_unless_all_machines_permit_and_have_it(place: Place) -> None:
    place.links.answers["beta"] = refusing
    (Path(place.script.folder) / "train.py").unlink()
    with pytest.raises(ConfigError) as error:
        place.ask("alpha", "beta")
    assert [fault.found for fault in error.value.faults] == ["nothing there", "another"]
    assert not place.started


def test_a_home_whose_machines_are_to_join_asks_the_first_that_may(place: Place) -> None:
    assert place.ask()["machine"] == ""
    place.links.answers["beta"] = refusing
    assert place.ask()["machine"] == ""
    assert place.ask()["machine"] == ""
    assert place.links.asked == ["beta"], "one that refused is not asked again"
    assert [found for _, _, found, _ in place.ask()["refusals"]] == ["another"]
    place.links.answers["gamma"] = answering
    answer = place.ask()
    assert (answer["machine"], answer["digest"]) == ("gamma", "d1")
    assert ModelFound.checked(answer["model"]) == FOUND


def test_one_that_says_nothing_in_time_is_asked_again(place: Place) -> None:
    def silent(message: dict[str, Any]) -> dict[str, Any]:
        raise UnansweredError("Asking the machine", "an answer", "none within 60 s", "Look.")

    place.links.answers["beta"] = silent
    assert (place.ask()["machine"], place.ask()["refusals"]) == ("", [])
    place.links.answers["beta"] = answering
    assert place.ask()["machine"] == "beta"


def test_one_that_is_gone_is_followed_by_the_next(place: Place) -> None:
    def dying(message: dict[str, Any]) -> dict[str, Any]:
        if message["starts"]:
            del place.links.answers["beta"]
            raise ConfigError("Asking the machine", "an answer", "none", "Look.")
        return {"model": None, "digest": "d1"}

    place.links.answers["beta"] = dying
    assert place.ask()["machine"] == ""
    place.links.answers["gamma"] = answering
    assert place.ask()["machine"] == "gamma"


def test_a_question_that_nobody_repeats_is_forgotten_and_its_script_ended(place: Place) -> None:
    place.ask("alpha")
    place.now += asked_scripts.UNHEARD_SECONDS / 2
    place.ask("alpha")
    place.now += asked_scripts.UNHEARD_SECONDS / 2
    place.look()
    assert not place.started[0].is_closed
    place.now += asked_scripts.UNHEARD_SECONDS
    place.look()
    assert place.started[0].is_closed


def test_no_more_than_some_are_started_at_once(place: Place) -> None:
    for number in range(asked_scripts.ASKED_MAX):
        place.ask("alpha", number=str(number))
    with pytest.raises(ConfigError, match="room"):
        place.ask("alpha", number="one more")
    place.service.close()
    assert all(script.is_closed for script in place.started)


@pytest.mark.parametrize("texts", ["home", "local"])
def test_how_it_has_ended_is_told_with_its_machine_and_its_words_stay_where_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: str
) -> None:
    place = Place(tmp_path, monkeypatch, texts=texts)
    place.ask("alpha")
    error = ScriptEndError("Running train.py", "a step", "exit status 1, with 'secret words'", "Correct it.")
    error.how = "exit status 1"
    place.started[0].told_of, place.started[0].has_ended = error, True
    with pytest.raises(ConfigError) as caught:
        place.ask("alpha")
    (fault,) = caught.value.faults
    assert "'alpha'" in fault.action
    assert ("secret words" in str(fault)) == (texts == "home")
    assert any("secret words" in line for line in place.lines), "its owner sees them"


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_command_asks_until_there_is_a_model_and_warns_of_other_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [("", None), ("beta", None), ("beta", FOUND.answer())]
    said: list[dict[str, Any]] = []

    def say(client: DaemonClient, message: dict[str, Any]) -> dict[str, Any]:
        said.append(message)
        machine, model = answers[len(said) - 1]
        return {"machine": machine, "model": model, "digest": "d1" * 16}

    monkeypatch.setattr(DaemonClient, "say", say)
    monkeypatch.setattr(script_question, "ASK_SECONDS", 0.0)
    machines = (
        Machine("alpha", address="tcp://127.0.0.1:1", roles=("syncer",)),
        Machine("beta", roles=("learner",), islands=2),
        Machine("gamma", islands=0),
    )
    question = ScriptQuestion(DaemonClient("alpha", "tcp://127.0.0.1:1"), Cluster(Path("c.toml"), machines, {}))
    script = LoopScript("/x/train.py", (), "/x")
    assert question(script, RunSlots()) == FOUND
    assert question(script, RunSlots()) == FOUND
    assert len(said) == 3
    assert [site["name"] for site in said[0]["sites"]] == ["beta"]
    assert not list(question.warnings({"beta": "d1" * 16}))
    (warning,) = question.warnings({"beta": "d1" * 16, "gamma": "d2" * 16})
    assert isinstance(warning, Fault)
    assert "gamma" in warning.found


def test_a_model_that_no_script_tells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"machine": "beta", "model": {"leaves": []}, "digest": ""}
    monkeypatch.setattr(DaemonClient, "say", lambda client, message: answer)
    question = ScriptQuestion(DaemonClient("alpha", "tcp://127.0.0.1:1"), Cluster(Path("c.toml"), (), {}))
    with pytest.raises(ConfigError, match="'beta'"):
        question(LoopScript("/x/train.py", (), "/x"), RunSlots())


def test_what_of_a_cluster_file_does_not_go_with_a_script_is_refused_before_anybody_is_asked() -> None:
    machines = tuple(Machine(name, island="pod", together=("beta", "gamma"), islands=1) for name in ("beta", "gamma"))
    cluster = Cluster(Path("c.toml"), machines, {}, tasks={"gamma": "/x/mine.py:task"})
    question = ScriptQuestion(DaemonClient("alpha", "tcp://127.0.0.1:1"), cluster)
    with pytest.raises(ConfigError) as caught:
        question(LoopScript("/x/train.py", (), "/x"), RunSlots())
    assert [fault.found for fault in caught.value.faults] == ["one of several", "/x/mine.py:task"]
