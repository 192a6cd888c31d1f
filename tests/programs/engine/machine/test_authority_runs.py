"""What a machine that takes part in runs can do to those of others: files that it sends, orders and questions that are
not about its own runs, reports about hosts that are not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import uvloop

from isthmus.ops.data.site_terms import SiteTerms
from isthmus.programs import SHIPPED_TASK
from isthmus.programs.engine.cluster.machine_file import MachineConfig, SiteRules
from isthmus.programs.engine.machine import run as collect_files
from isthmus.programs.engine.machine.absent_homes import HomeView
from isthmus.programs.engine.machine.links import HomeAddress, HomeLink, MachineLinks
from isthmus.programs.engine.machine.neighbours import Neighbours
from isthmus.programs.engine.machine.outposts import PIECE_BYTES, Outposts
from isthmus.programs.engine.machine.run import gather
from isthmus.programs.engine.request.own_data import OwnData
from isthmus.programs.engine.request.reference import called
from isthmus.programs.engine.request.spec import Here
from isthmus.programs.engine.run.finish import spans_in
from isthmus.runtime.clock import Instant
from isthmus.runtime.daemon.ground import LocalGround
from isthmus.runtime.daemon.home_daemon import Daemon
from isthmus.runtime.daemon.outpost import SHOWN_BYTES_MAX, of_orders, of_report
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.host.contract import Span
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.home_events import Places, RunRoles
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.supervision.messages import Gone, Orders, Report, ReportError, Seen, Stamp, Wanted, report_of

LEARNERS = [Replica("learner", slot) for slot in range(2)]


# -- files that a machine sends home -----------------------------------------------------------------------------------

RUN = {"tokens": 1, "learners": 1, "slots_max": 1}
"""Section `run.` of a spec."""


class Answers:
    """Links to machines that answer questions about files as each of them likes."""

    def __init__(self, listed: dict[str, Any], data: str = "data", kept: dict[str, Any] | None = None) -> None:
        self.listed, self.data, self.kept = listed, data, kept or {}
        self.asked: list[str] = []

    async def request(self, machine: str, message: dict[str, Any], seconds_max: float) -> dict[str, Any]:
        """The answer of a machine."""
        if message["type"] == "files":
            return {"type": "files", "files": self.listed[machine], "kept": self.kept.get(machine, [])}
        self.asked.append(message["name"])
        return {"type": "piece", "text": self.data[message["offset"] :]}


def gathered(folder: Path, answers: Answers) -> list[str]:
    """The lines that were logged while everything was gathered of beta, which has learner 1, and of gamma."""
    lines: list[str] = []
    machines = {"beta": {LEARNERS[1]}, "gamma": {Replica("learner", 2)}}
    asyncio.run(gather(cast(MachineLinks, answers), "run", folder, machines, lines.append))
    return lines


GAMMAS = [["logs/learner-2.log", 4]]
HOSTILE: list[Any] = [
    [["logs/daemon.log", 4]],
    [["logs/learner-0.log", 4]],
    [["spans/learner-0-1.json", 4]],
    [["tape/learner-0-1.1.tape", 4]],
    [["tape/home-12.1.tape", 4]],
    [["spans/learner-1-1.json/../../summary.json", 4]],
    [["../learner-1.log", 4]],
    [["logs/recorder-0.log", 4]],
    [["logs/learner-1.log", -1]],
    [["logs/learner-1.log", 1e300]],
    [["logs/learner-1.log", "4"]],
    [["logs/learner-1.log", True]],
    [[["logs/learner-1.log"], 4]],
    [[7, 4]],
    [["logs/learner-1.log"]],
    7,
    None,
    "logs",
]


@pytest.mark.parametrize("listed", HOSTILE, ids=str)
def test_a_machine_writes_into_no_file_of_another(tmp_path: Path, listed: Any) -> None:
    answers = Answers({"beta": listed, "gamma": GAMMAS})
    lines = gathered(tmp_path, answers)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["learner-2.log"]
    assert (tmp_path / "logs" / "learner-2.log").read_text() == "data"
    assert [line.partition(" are missing")[0] for line in lines] == ["logs, spans and tapes of beta"]


def test_the_files_of_a_machines_own_hosts_come_home(tmp_path: Path) -> None:
    listed = [["logs/forkserver.log", 4], ["logs/forkserver.log.1", 4], ["spans/learner-1-12.json", 4]]
    listed += [["logs/learner-1.log", 4], ["logs/learner-1.log.1", 4]]
    listed += [["tape/learner-1-11.3.tape", 4], ["tape/learner-1-12.4.tape", 4]]
    (tmp_path / "tape").mkdir()
    (tmp_path / "tape" / "learner-1-12.4.tape").write_text("of here")
    assert gathered(tmp_path, Answers({"beta": listed, "gamma": GAMMAS})) == []
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert found == [
        "logs/forkserver-beta.log",
        "logs/forkserver-beta.log.1",
        "logs/learner-1.log",
        "logs/learner-1.log.1",
        "logs/learner-2.log",
        "spans/learner-1-12.json",
        "tape/learner-1-11.3.tape",
        "tape/learner-1-12.4.tape",
    ]
    assert (tmp_path / "tape" / "learner-1-12.4.tape").read_text() == "of here"


def test_in_place_of_a_log_that_its_machine_keeps_a_line_says_where_it_is(tmp_path: Path) -> None:
    kept = {"beta": ["logs/forkserver.log", "logs/learner-1.log", "logs/learner-1.log"]}
    assert gathered(tmp_path, Answers({"beta": [], "gamma": []}, kept=kept)) == []
    logs = {path.name: path.read_text() for path in tmp_path.rglob("*.log")}
    assert logs == {
        "forkserver-beta.log": "the text is on machine beta, in its log of forkserver\n",
        "learner-1.log": "the text is on machine beta, in its log of learner/1\n",
    }


@pytest.mark.parametrize(
    "kept", [["logs/learner-0.log"], ["../summary.json"], ["spans/learner-1-1.json"], [7], 7, [[]]]
)
def test_a_machine_keeps_no_log_of_another(tmp_path: Path, kept: Any) -> None:
    lines = gathered(tmp_path, Answers({"beta": [], "gamma": GAMMAS}, kept={"beta": kept}))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["learner-2.log"]
    assert [line.partition(" are missing")[0] for line in lines] == ["logs, spans and tapes of beta"]


def test_a_file_is_no_larger_than_it_was_said_to_be(tmp_path: Path) -> None:
    endless = Answers({"beta": [["logs/learner-1.log", 10]], "gamma": []}, data="x" * 1000)
    gathered(tmp_path, endless)
    assert (tmp_path / "logs" / "learner-1.log").read_text() == "x" * 10


def test_tapes_beyond_their_bound_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_files, "TAPES_BYTES_MAX", 7)
    listed = [["logs/learner-1.log", 4], ["tape/learner-1-1.1.tape", 4], ["tape/learner-1-2.2.tape", 4]]
    assert gathered(tmp_path, Answers({"beta": listed, "gamma": []})) == [
        "tape/learner-1-2.2.tape of beta stays there: 4 bytes"
    ]
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["learner-1-1.1.tape", "learner-1.log"]


def test_what_does_not_come_whole_is_said(tmp_path: Path) -> None:
    listed = [["logs/learner-1.log", 10], ["spans/learner-1-12.json", 10]]
    assert gathered(tmp_path, Answers({"beta": listed, "gamma": []})) == [
        "logs/learner-1.log of beta is not whole: 4 of 10 bytes came",
        "spans/learner-1-12.json of beta is not whole: 4 of 10 bytes came",
    ]
    assert [path.name for path in tmp_path.rglob("*.*")] == ["learner-1.log"]


def test_a_piece_that_is_too_long_costs_the_machine_its_files(tmp_path: Path) -> None:
    endless = Answers({"beta": [["logs/learner-1.log", 10]], "gamma": []}, data="x" * (PIECE_BYTES + 1))
    lines = gathered(tmp_path, endless)
    assert [line.partition(" are missing")[0] for line in lines] == ["logs, spans and tapes of beta"]
    assert not list(tmp_path.rglob("*.log"))


def test_spans_that_are_none_cost_only_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spans").mkdir()
    span = Span("learner/0", "inner-step", Instant(1), Instant(2))
    (tmp_path / "spans" / "learner-0-1.json").write_bytes(msgspec.json.encode([span]))
    for number, text in enumerate(("{", "[7]", "[]]", '[["learner/1"]]', "")):
        (tmp_path / "spans" / f"learner-1-{number}.json").write_text(text)
    assert spans_in(tmp_path) == [span]
    assert capsys.readouterr().err.count("is left out of the trace") == 5


# -- a home and the runs of another ------------------------------------------------------------------------------------


class Place:
    """The outposts of beta, which has a part in a run of alpha; gamma is another home."""

    def __init__(self, folder: Path, config: MachineConfig | None = None, *, learners: int = 1) -> None:
        self.loop = uvloop.new_event_loop()
        self.lines: list[str] = []
        self.outposts = self.outposts_of(folder, config or MachineConfig())
        self.links = {
            name: FakeLink(HomeAddress(name, f"tcp://127.0.0.1:{port}"))
            for name, port in (("alpha", 1), ("gamma", 2), ("heir", 3))
        }
        job = {"program": "decoupled-diloco", "task": SHIPPED_TASK, "layout": [], "tokens_per_batch": 1,
               "tokens_by_slot": [], "settings": {}}  # fmt: skip
        told = {"run": "run", "fingerprint": "", "roles": {"learner": 1}, "most": {}, "least": {},
                "computing": ["learner", "evaluator"], "settings": RUN, "tokens_of_step": [1],
                "zero_ns": 0, "cpu_seconds": 0.0, "here": asdict(Here("127.0.0.1", learners)),
                "job": job}  # fmt: skip
        self.called = {"type": "station", "run": "run", "spec": told, "age_ns": 0, "term": 1}
        self.called["heirs"] = [["heir", "tcp://127.0.0.1:3", ""]]
        self.hear("alpha", self.called)

    def outposts_of(self, folder: Path, config: MachineConfig) -> Outposts:
        """The outposts of a daemon of beta."""
        return Outposts(
            self.loop,
            "beta",
            folder,
            config,
            tell=self.lines.append,
            on_change=lambda: None,
            link=lambda home: cast(HomeLink, self.links[home.name]),
            is_operator=lambda key: False,
            at_home=lambda link, run, term: False,
        )

    def hear(self, home: str, message: dict[str, Any]) -> None:
        self.outposts.on_message(cast(HomeLink, self.links[home]), message)

    def answer(self, home: str, message: dict[str, Any]) -> dict[str, Any]:
        asked = cast(Coroutine[Any, Any, dict[str, Any]], self.outposts.answer(self.links[home].home, message))
        return self.loop.run_until_complete(asked)

    def close(self) -> None:
        self.outposts.end()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


class FakeLink:
    """A link to a home, and what was sent there."""

    def __init__(self, home: HomeAddress) -> None:
        self.home, self.is_up = home, True
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        """Note what is sent."""
        self.sent.append(message)

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def test_a_home_gives_no_orders_and_reads_no_files_of_another_homes_run(place: Place) -> None:
    assert place.outposts.runs(place.links["alpha"].home) == ["run"]
    place.hear("gamma", {**of_orders(Orders(is_over=True, home="gamma"), None), "run": "run"})
    assert place.outposts.runs(place.links["alpha"].home) == ["run"]
    assert "refused what gamma says" in place.lines[-1]
    for asked in ({"type": "files"}, {"type": "piece", "name": "logs/learner-0.log", "offset": 0}):
        with pytest.raises(KeyError):
            place.answer("gamma", {**asked, "run": "run"})
    assert place.answer("alpha", {"type": "files", "run": "run"})["files"] == []
    place.hear("alpha", {**of_orders(Orders(is_over=True, home="alpha"), None), "run": "run"})
    place.loop.run_until_complete(asyncio.sleep(0))
    assert place.outposts.runs(place.links["alpha"].home) == []


def test_a_machine_that_keeps_texts_gives_no_log_away_and_has_them_when_the_run_is_over(tmp_path: Path) -> None:
    place = Place(tmp_path, MachineConfig(error_texts="local"))
    (folder,) = place.outposts.folders
    for name in ("logs/learner-0.log", "logs/learner-0.log.1", "spans/learner-0-1.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("row 31 is of Jane")
    place.outposts.release("run")
    place.outposts = place.outposts_of(tmp_path, MachineConfig())  # The next daemon, started without the setting.
    place.outposts.adopt(folder)
    listed = place.answer("alpha", {"type": "files", "run": "run"})
    assert (listed["files"], listed["kept"]) == ([["spans/learner-0-1.json", 17]], ["logs/learner-0.log"])
    asked = {"type": "piece", "run": "run", "offset": 0}
    assert place.answer("alpha", {**asked, "name": "spans/learner-0-1.json"})["text"]
    for name in ("logs/learner-0.log", "logs/learner-0.log.1"):
        with pytest.raises(ConfigError, match="the text is on machine beta, in its log of learner/0"):
            place.answer("alpha", {**asked, "name": name})
    place.hear("alpha", {**of_orders(Orders(is_over=True, home="alpha"), None), "run": "run"})
    place.loop.run_until_complete(asyncio.sleep(0))
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    assert left == ["logs/learner-0.log", "logs/learner-0.log.1"]
    assert f"its logs are in {folder}/logs" in place.lines[-1]
    place.close()


def test_only_a_machine_that_the_home_has_named_can_be_the_next_home(place: Place) -> None:
    later = {**place.called, "term": 2}
    place.hear("gamma", later)
    assert "refused what gamma says" in place.lines[-1]
    assert place.outposts.standing("run", "heir") == HomeView("alpha", 1, is_heard=True)
    place.hear("heir", {**of_orders(Orders(stamp=Stamp(2, 1, 1), home="alpha"), None), "run": "run"})
    assert "orders of 'alpha', given by 'heir'" in place.lines[-1]
    place.hear("heir", later)
    assert "follows heir, the home of run in term 2, in place of alpha" in place.lines[-1]
    assert place.outposts.standing("run", "heir") == HomeView("heir", 2, is_heard=False)
    assert [sent["type"] for sent in place.links["heir"].sent] == ["report"]
    note = json.loads((place.outposts.folders[0] / "outpost.json").read_text())
    assert (note["home"]["name"], note["term"]) == ("heir", 2)
    # The former one is told, and ends nothing.
    del place.links["alpha"].sent[:]
    place.hear("alpha", {**of_orders(Orders(is_over=True, home="alpha"), None), "run": "run"})
    assert place.links["alpha"].sent == [{"type": "superseded", "run": "run", "by": "heir"}]
    assert place.outposts.runs(place.links["heir"].home) == ["run"]


@pytest.mark.parametrize(
    ("home", "term", "resumed", "is_obeyed"),
    [
        ("alpha", 1, 0, False),  # It is what this machine has.
        ("alpha", 1, 1, True),
        ("alpha", 0, 9, False),
        ("heir", 1, 1 << 62, False),  # It may be the home once, and is not.
        ("heir", 2, 1, True),
        ("heir", 2, 0, False),
        ("gamma", 2, 1, False),
    ],
)
def test_hosts_begin_anew_for_the_home_alone(
    place: Place, home: str, term: int, resumed: int, *, is_obeyed: bool
) -> None:
    orders = of_orders(Orders(stamp=Stamp(term, 1, 1), home=home), None)
    place.hear(home, {**orders, "run": "run", "resumed": resumed})
    assert any("begin anew" in line for line in place.lines) == is_obeyed


def test_a_later_home_that_has_a_copy_of_before_has_hosts_begin_anew(tmp_path: Path) -> None:
    place = Place(tmp_path / "other")
    place.outposts.release("run")
    place.outposts = place.outposts_of(tmp_path, MachineConfig())
    place.hear("alpha", {**place.called, "spec": {**place.called["spec"], "resumed": 2}})
    orders = of_orders(Orders(stamp=Stamp(2, 1, 1), home="heir"), None)
    place.hear("heir", {**orders, "run": "run", "resumed": 1})
    assert "they begin anew" in place.lines[-1]
    place.close()


@pytest.mark.parametrize(
    "name", ["../outpost.json", "logs/../spec.json", "/etc/passwd", "spec.json", "logs/", "logs/..", 7]
)
def test_a_home_reads_only_logs_and_spans(place: Place, name: Any) -> None:
    with pytest.raises((ValueError, TypeError, OSError)):
        place.answer("alpha", {"type": "piece", "run": "run", "name": name, "offset": 0})


@pytest.mark.long
@pytest.mark.parametrize("run", ["../run", "/tmp/run", "a/b", "", ".", "..", "r" * 129, "run\n"])
def test_a_part_of_a_run_is_in_a_folder_of_its_own(place: Place, tmp_path: Path, run: str) -> None:
    before = sorted(tmp_path.parent.rglob("*"))
    place.hear("gamma", {"type": "station", "run": run, "spec": {}, "age_ns": 0, "term": 1})
    assert [sent["type"] for sent in place.links["gamma"].sent] == ["unstationed"]
    assert sorted(tmp_path.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "message",
    [
        {"type": "station"},
        {"type": "orders", "run": "run"},
        {"type": "orders", "run": "run", "orders": 7, "directory": None},
    ],
)
def test_a_home_that_talks_nonsense_is_refused(place: Place, message: dict[str, Any]) -> None:
    place.hear("alpha", message)
    assert "refused what alpha says" in place.lines[-1]
    assert place.outposts.runs(place.links["alpha"].home) == ["run"]


# -- reports -----------------------------------------------------------------------------------------------------------


class Unlaunched:
    """Starts nothing."""

    cpu_seconds = 0.0

    def prepare(self, wanted: Any) -> Any:
        """Nothing to do."""
        return wanted

    def __call__(self, *arguments: Any) -> None:
        """Nothing is started."""

    def script_log(self, replica: Any) -> None:
        """There is no script."""

    def close(self) -> None:
        """Nothing to close."""


def test_a_machine_shows_only_its_own_hosts_and_not_without_bound(tmp_path: Path) -> None:
    loop = uvloop.new_event_loop()
    daemon = Daemon(
        LocalGround(loop, tmp_path, name="alpha", launch=cast(Any, Unlaunched())),
        RunRoles(roles={"learner": 2, "recorder": 1}, slots_max={}, least={}),
        run="run",
        name="alpha",
        on_over=lambda daemon: None,
        places=Places(home="alpha", machines={LEARNERS[1]: "beta"}),
    )
    daemon.start()
    members = {replica: Member(replica, 1) for replica in (*LEARNERS, Replica("recorder", 0))}

    def say(replica: Replica, **published: Any) -> None:
        shown = {members[replica]: {"published": published, "figures": {}}}
        daemon.on_message("beta", of_report(Report(lives=(Seen(members[LEARNERS[1]], 1),)), shown))

    def shown(name: str) -> Any:
        return next(host for host in daemon.status()["hosts"] if host["name"] == name).get("published")

    say(Replica("recorder", 0), record={"tokens": 10**9})
    say(LEARNERS[0], forged=True)
    assert daemon.status()["training"] == {}
    assert shown("learner/0") is None
    say(LEARNERS[1], step={"step": 7})
    assert shown("learner/1") == {"step": {"step": 7}}
    say(LEARNERS[1], text={"text": "x" * SHOWN_BYTES_MAX})
    assert shown("learner/1") == {}
    forged = of_report(Report(lives=(Seen(members[LEARNERS[1]], 1),)), {})
    daemon.on_message("beta", {**forged, "shown": [[[["learner", 1], 1], {"cpu_seconds": []}, {}]]})
    assert shown("learner/1") == {}
    assert json.dumps(daemon.status())
    daemon.close()
    [line] = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert (line["kind"], line["machine"], line["field"]) == ("report-refused", "beta", "shown[0].figures.cpu_seconds")
    loop.close()


@pytest.mark.parametrize("used", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_report_that_cannot_be_counted_is_none(used: float) -> None:
    ended = Gone(Member(LEARNERS[1], 1), Exited(1), None, used)
    with pytest.raises(ReportError, match=r"no report: report.ended\[0\].cpu_seconds: expected `float` .= "):
        report_of(msgspec.to_builtins(Report(ended=(ended,))))


def test_the_answer_of_a_machine_that_is_none_is_refused() -> None:
    loop = asyncio.new_event_loop()

    async def asked(answer: Any) -> None:
        links = MachineLinks(
            loop, lambda peer, message: links.on_response("beta", {"number": message["number"], "message": answer})
        )
        links.record(b"beta", {"name": "beta", "instance": "1"})
        await links.request("beta", {"type": "files"}, 20.0)

    for answer in (
        {},
        {"type": "refused"},
        {"type": "refused", "faults": [["one"]]},
        {"type": "refused", "faults": []},
    ):
        with pytest.raises(ConfigError):
            loop.run_until_complete(asked(answer))
    loop.close()


class FakeRun:
    """A run that notes which machines are taken away from it, and whether it is ended."""

    def __init__(self, name: str, *machines: str) -> None:
        self.name, self.folder = name, Path(name)
        self.taken: list[tuple[str, str]] = []
        self.daemon = SimpleNamespace(
            home=SimpleNamespace(fleet=SimpleNamespace(others=list(machines))),
            take_away=lambda machine, how: self.taken.append((machine, how)),
        )

    def log(self, line: str) -> None:
        """A line that nobody reads."""


def test_a_machine_that_cannot_take_part_costs_a_run_its_islands_only(tmp_path: Path) -> None:
    loop = uvloop.new_event_loop()
    runs = [FakeRun("one", "beta", "gamma"), FakeRun("two", "gamma")]
    lines: list[str] = []
    neighbours = Neighbours(
        loop,
        "alpha",
        tmp_path,
        MachineConfig(),
        None,
        runs=lambda: cast(Any, runs),
        send=lambda peer, message: None,
        caller=lambda: "beta",
        tell=lines.append,
        on_change=lambda: None,
        on_expelled=lambda home, runs: None,
        on_loop=lambda name: None,
        home_handler=lambda kind: None,
    )
    neighbours.links.record(b"beta", {"name": "beta", "instance": "1"})
    neighbours.links.record(b"gamma", {"name": "gamma", "instance": "2"})
    for run in ("one", "two", "three"):
        for peer in (b"beta", b"gamma"):  # What comes with the key of beta is not gamma's word.
            message = {"type": "unstationed", "run": run, "error": "x" * 1_000_000}
            neighbours.handlers["unstationed"](peer, message)
    assert [run.taken for run in runs] == [[("beta", "left")], []]
    assert len(lines[-1]) < 1000
    loop.close()


@pytest.mark.parametrize("resumed", [0, 2, 1])
def test_a_machine_that_may_join_once_more_is_not_released_with_what_its_learners_have(
    tmp_path: Path, place: Place, resumed: int
) -> None:
    """A home that goes on with changes takes it for one that has left; its hosts of before end, and leave their
    moments."""
    sent = list[dict[str, Any]]()
    home = SimpleNamespace(fleet=SimpleNamespace(others=[], away={"beta"}, left_by=lambda name: []), term=1)
    run = SimpleNamespace(
        name="run", resumed=resumed, is_running=True, takes_loops=False, leaves_out=lambda name: False,
        daemon=SimpleNamespace(home=home),
    )  # fmt: skip
    neighbours = Neighbours(
        place.loop,
        "alpha",
        tmp_path,
        MachineConfig(),
        None,
        runs=lambda: cast(Any, [run]),
        send=lambda peer, message: sent.append(message),
        caller=lambda: None,
        tell=lambda line: None,
        on_change=lambda: None,
        on_expelled=lambda home, runs: None,
        on_loop=lambda name: None,
        home_handler=lambda kind: None,
    )
    neighbours.links.record(b"beta", {"name": "beta", "instance": "1"})
    neighbours.handlers["report"](b"beta", {**of_report(Report(), {}), "run": "run", "resumed": 1})
    [orders] = sent
    place.hear(
        "alpha", {**place.called, "run": "run-2", "spec": {**place.called["spec"], "run": "run-2", "resumed": 1}}
    )
    place.hear("alpha", {**orders, "run": "run-2"})
    place.loop.run_until_complete(asyncio.sleep(0))
    kept = (tmp_path / "run-2" / "spec.json").exists()
    assert (place.outposts.runs(place.links["alpha"].home), kept) == (["run"], resumed != 1)
    neighbours.close()


def test_a_machine_that_is_expelled_learns_by_which_home_and_from_which_runs(tmp_path: Path) -> None:
    loop, told = uvloop.new_event_loop(), list[tuple[str, list[str]]]()
    neighbours = Neighbours(
        loop,
        "beta",
        tmp_path,
        MachineConfig(),
        None,
        runs=list,
        send=lambda peer, message: None,
        caller=lambda: None,
        tell=lambda line: None,
        on_change=lambda: None,
        on_expelled=lambda home, runs: told.append((home, runs)),
        on_loop=lambda name: None,
        home_handler=lambda kind: None,
    )
    held, link = {"run"}, FakeLink(HomeAddress("alpha", "tcp://127.0.0.1:1"))
    neighbours.outposts = cast(Any, SimpleNamespace(runs=lambda home: sorted(held), end_of=lambda home: held.clear()))
    neighbours._ordered(cast(HomeLink, link), {"type": "expelled"})
    assert told == [("alpha", ["run"])]
    assert held == set()
    loop.close()


# -- a home and the files of a machine with data of its own -----------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Place]:
    """The outposts of beta, whose owner has data; alpha says that no learner is to be there."""
    (tmp_path / "ours.txt").write_text("ours " * 100)
    made = Place(
        tmp_path, MachineConfig(error_texts="local", site=SiteRules((str(tmp_path / "ours.txt"),))), learners=0
    )
    yield made
    made.close()


@pytest.mark.parametrize("role", ["learner", "evaluator"])
def test_no_host_at_a_site_has_a_task_that_reads_what_the_home_names(site: Place, role: str) -> None:
    """Whatever the home says of the hosts there, and of the owner's data."""
    wanted = Orders((Wanted(Member(Replica(role, 0), 1), is_new=True),), stamp=Stamp(1, 1, 1), home="alpha")
    site.links["alpha"].sent.clear()
    site.hear("alpha", {**of_orders(wanted, None), "run": "run"})
    assert [sent["type"] for sent in site.links["alpha"].sent] == ["unstationed"]
    told = list(site.lines)
    site.hear("alpha", {**of_orders(wanted, None), "run": "run"})
    assert site.lines == told
    assert not list(site.outposts.folders[0].glob("logs/*"))


def test_a_site_reads_no_file_that_a_task_names_to_say_whether_it_is_alike(site: Place, tmp_path: Path) -> None:
    (tmp_path / "private.csv").write_text("a guess")
    task = called(SHIPPED_TASK, {"router": str(tmp_path / "private.csv")})
    asked = {"type": "check", "program": "decoupled-diloco", "task": task, "digest": "0" * 32}
    with pytest.raises(ConfigError) as refused:
        site.answer("alpha", asked)
    assert [fault.found for fault in refused.value.faults] == ["task.router"]
    with pytest.raises(ConfigError) as unlike:
        site.answer("alpha", {**asked, "task": SHIPPED_TASK})
    assert unlike.value.faults[0].found == "something else"


def station_with_learner(site: Place, monkeypatch: pytest.MonkeyPatch, **more: Any) -> asyncio.Future[None]:
    """Ask the site to take part in a run, `later`; returns what its data are read until."""
    is_read: asyncio.Future[None] = site.loop.create_future()

    async def read(*asked: Any) -> tuple[OwnData, dict[str, Any]]:
        await is_read
        return OwnData(("/ours",), SiteTerms("0" * 32, 9, 9)), {}

    monkeypatch.setattr(site.outposts.own_data, "read", read)
    told = {**site.called["spec"], "here": asdict(Here("127.0.0.1", 1)), **more}
    site.links["alpha"].sent.clear()
    site.hear("alpha", {**site.called, "run": "later", "spec": told})
    return is_read


def settle(site: Place) -> None:
    """Let what is due be done."""
    for _ in range(5):
        site.loop.run_until_complete(asyncio.sleep(0))


@pytest.mark.parametrize("data", ["/etc", 7, {"bytes": "x"}, [[1]], None])
def test_what_no_home_says_of_its_data_is_refused_and_told(
    site: Place, monkeypatch: pytest.MonkeyPatch, data: Any
) -> None:
    station_with_learner(site, monkeypatch, data=data).set_result(None)
    settle(site)
    assert [sent["type"] for sent in site.links["alpha"].sent] == ["unstationed"]
    assert site.outposts.runs(site.links["alpha"].home) == ["run"]


def test_a_site_that_its_home_sends_away_while_it_reads_its_data_takes_no_part(
    site: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read = station_with_learner(site, monkeypatch)
    settle(site)
    site.hear("gamma", {"type": "leave-run", "run": "later", "seconds": 5.0})  # Not its home.
    site.hear("alpha", {"type": "leave-run", "run": "later", "seconds": 5.0})
    is_read.set_result(None)
    settle(site)
    assert site.outposts.runs(site.links["alpha"].home) == ["run"]


def test_only_the_home_of_a_run_sends_a_site_away(site: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    is_read = station_with_learner(site, monkeypatch)
    settle(site)
    site.hear("gamma", {"type": "leave-run", "run": "later", "seconds": 5.0})
    is_read.set_result(None)
    settle(site)
    assert site.outposts.runs(site.links["alpha"].home) == ["run", "later"]
    (folder,) = (each for each in site.outposts.folders if each.name == "later")
    here = json.loads((folder / "spec.json").read_text())["here"]
    assert (here["is_site"], here["own_data"]["paths"]) == (True, ["/ours"])
