"""What an admitted machine, and an operator, can make a daemon do with requests made by hand: nothing beyond their own.

The daemon is a real one, in a thread of this process; the requests come over a socket with keys.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isthmus.programs import SHIPPED_TASK
from isthmus.programs.engine.cluster.handover import RunRoot
from isthmus.programs.engine.cluster.machine_file import MachineConfig
from isthmus.programs.engine.machine.daemon import MachineDaemon
from isthmus.programs.engine.machine.names import DaemonRun
from isthmus.programs.engine.request.spec import CLUSTER as CLUSTER_FILE
from isthmus.programs.engine.request.spec import Here, load
from isthmus.programs.wings.doctor.trial_ports import OPEN_MAX
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import HOSTS_MAX, LEARNERS_MAX
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.security_keys import KeyPair, Keyring
from tests.programs.engine.machine.owner import Owner
from tests.programs.engine.results import whole_files
from tests.programs.engine.snapshots.keep_format import copied

ALPHA, BETA, GAMMA, OWNER = (KeyPair.make() for _ in range(4))
ASKED = ("machine", "call", "check", "take", "go-on", "watch", "log", "stop", "end", "expel", "resume", "restore",
         "dial-port", "measure-link")  # fmt: skip
NAMES = {BETA.public: "beta", GAMMA.public: "gamma", OWNER.public: "owner"}

RUN = {"tokens": 1, "learners": 1, "slots_max": 1}
"""Section `run.` of a spec."""


def spec(**changed: Any) -> dict[str, Any]:
    """A spec as a command would hand it over."""
    job = {"program": "decoupled-diloco", "task": SHIPPED_TASK, "layout": [], "tokens_per_batch": 1,
           "settings": {}}  # fmt: skip
    told = {"run": "run-1", "fingerprint": "", "roles": {"learner": 1}, "most": {}, "least": {}, "computing": [],
            "settings": RUN, "zero_ns": 0, "cpu_seconds": 0.0, "here": asdict(Here("127.0.0.1", 1)),
            "job": job}  # fmt: skip
    return {**told, **changed}


def handover(**changed: Any) -> dict[str, Any]:
    """A hand-over as a command would make it."""
    site = {"name": "alpha", "address": None, "public_key": None, "roles": []}
    cluster = {"home": "alpha", "sites": [site], "placement": {}, "digest": ""}
    handed = {"name": "mine", "folder": "run", "config": "evil = true\n", "graph": "{}", "spec": spec(), "data": "{}"}
    return {"type": "take", "handover": {**handed, "cluster": cluster, **changed}, "is_watched": False}


class Alpha:
    """The daemon of alpha, which admits beta and gamma, and owner as an operator; its runs are below `root`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        self.root.mkdir()
        self.lines: list[str] = []
        self.keys = Keyring(ALPHA, NAMES, "alpha", [OWNER.public])
        self._loop = uvloop.new_event_loop()
        config = MachineConfig(pair=ALPHA, runs=self.root)
        self.daemon = MachineDaemon(
            self._loop,
            "alpha",
            "tcp://127.0.0.1:*",
            config,
            self.keys,
            folder / "state",
            Owner(self.lines),
        )
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def asks(self, pair: KeyPair, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to whoever has these keys."""
        answer = ask(self.daemon.endpoint, message, 20.0, keys=Keyring(pair), server_key=ALPHA.public)
        assert answer is not None, message
        return answer

    def refusal(self, pair: KeyPair, message: dict[str, Any]) -> list[str]:
        """The one fault of the answer, which is a refusal."""
        answer = self.asks(pair, message)
        assert answer["type"] == "refused", (message, answer)
        (fault,) = answer["faults"]
        return list(fault)

    def do(self, call: Callable[[], Any]) -> Any:
        """What a call gives on the loop of the daemon."""
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(call()))
        return done.result(20)

    def former(self, name: str, outcome: str = "done") -> str:
        """The folder of a run of this daemon that is over."""
        folder = self.root / name
        (folder / "logs").mkdir(parents=True)
        (folder / "config.toml").write_text(whole_files.CONFIG)
        (folder / "logs" / "daemon.log").write_text("what the daemon said\n")
        (folder / "over.json").write_text(json.dumps({"outcome": outcome, "error": None}))
        (folder / "summary.json").write_text(json.dumps(whole_files.summary(outcome=outcome)))
        self.do(lambda: self.daemon.adopt(DaemonRun(str(folder), is_watched=False)))
        return str(folder)

    def close(self) -> None:
        self.do(self.daemon.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def alpha(tmp_path: Path) -> Iterator[Alpha]:
    made = Alpha(tmp_path)
    yield made
    made.close()


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# -- who may ask for what ----------------------------------------------------------------------------------------------


def test_an_admitted_machine_gets_one_refusal_for_whatever_an_operator_may_ask(alpha: Alpha) -> None:
    run = alpha.former("run")
    messages = {
        "call": {"home": {"name": "beta", "address": "tcp://127.0.0.1:9", "public_key": BETA.public}},
        "check": {"cluster": {}, "faults": [], "program": "decoupled-diloco", "task": SHIPPED_TASK},
        "take": handover(),
        "log": {"run": run, "name": "daemon"},
        "expel": {"name": "gamma"},
    }
    for kind in ASKED:
        message = {"run": run, "reason": "beta wants it", **messages.get(kind, {}), "type": kind}
        _, expected, found, do = alpha.refusal(BETA, message)
        assert expected == "an operator's key", kind
        assert "'beta'" in found
        assert do.endswith(f"isthmus admit --operator beta {BETA.public}")
    assert files_in(alpha.root / "run") == ["config.toml", "logs", "logs/daemon.log", "over.json", "summary.json"]
    before = len(alpha.lines)
    assert before == len(ASKED)
    alpha.refusal(BETA, {"type": "machine"})
    assert len(alpha.lines) == before  # People are told once of each.


def test_an_operator_and_the_machine_itself_may_ask(alpha: Alpha) -> None:
    run = alpha.former("run")
    for pair in (OWNER, ALPHA):
        told = alpha.asks(pair, {"type": "machine"})
        assert (told["name"], told["former"]) == ("alpha", [{"run": run, "outcome": "done"}])
        assert alpha.asks(pair, {"type": "watch", "run": run})["summary"] == whole_files.summary()
        assert alpha.asks(pair, {"type": "log", "run": run, "name": "daemon"})["text"] == "what the daemon said\n"


def test_authority_comes_and_goes_while_the_daemon_lives(alpha: Alpha) -> None:
    alpha.refusal(BETA, {"type": "machine"})
    alpha.do(lambda: alpha.keys.replace(NAMES, [BETA.public]))
    assert alpha.asks(BETA, {"type": "machine"})["type"] == "machine"
    assert alpha.refusal(OWNER, {"type": "machine"})[1] == "an operator's key"
    assert alpha.asks(ALPHA, {"type": "machine"})["type"] == "machine"


def test_ports_are_tried_both_ways_and_within_bounds(alpha: Alpha) -> None:
    opened = alpha.asks(BETA, {"type": "open-port"})
    assert opened["name"] == "alpha"
    assert abs(opened["time_ns"] - time.time_ns()) < 20e9
    socket.create_connection(("127.0.0.1", opened["port"]), timeout=20).close()
    for _ in range(OPEN_MAX - 1):
        alpha.asks(BETA, {"type": "open-port"})
    assert alpha.refusal(BETA, {"type": "open-port"})[2] == f"{OPEN_MAX} that are open"
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = "tcp://{}:{}".format(*server.getsockname())
        answer = alpha.asks(OWNER, {"type": "dial-port", "endpoint": endpoint})
        assert answer["seconds"] >= 0
        assert answer["refusal"] == ""
    answer = alpha.asks(OWNER, {"type": "dial-port", "endpoint": endpoint})
    assert (answer["seconds"], answer["refusal"]) == (None, "Connection refused")
    assert alpha.refusal(OWNER, {"type": "dial-port", "endpoint": "file:///"})[1].startswith("tcp://")


def test_a_machine_speaks_for_itself_only(alpha: Alpha) -> None:
    link = {"type": "link", "instance": "1", "runs": [], "follows": [], "islands": 1}
    assert alpha.asks(BETA, {**link, "name": "beta"})["type"] == "linked"
    assert alpha.refusal(BETA, {**link, "name": "gamma"})[2] == "that of 'beta'"
    assert alpha.asks(GAMMA, {**link, "name": "gamma", "instance": "2"})["type"] == "linked"
    # Another daemon with the same key is not believed while the first is there.
    assert alpha.refusal(GAMMA, {**link, "name": "gamma", "instance": "3"})[2] == "two"


# -- what nobody may name ----------------------------------------------------------------------------------------------

FOLDERS = ["/tmp/isthmus-evil", "..", "../evil", "a/../../evil", "a//b", "./a", "a/.", ".config", "a/.git", "a/", "-x",
           "link/evil", "link", "full", "old/logs/evil", "old", "file", "file/evil", "a\n", "a\0b", "a b", "ä", "~",
           "a" * 101, "/".join("a" * 9), "%2e%2e/evil"]  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_a_run_folder_is_new_and_below_the_root(alpha: Alpha, name: str) -> None:
    outside = alpha.folder / "outside"
    outside.mkdir()
    (alpha.root / "link").symlink_to(outside)
    (alpha.root / "full").mkdir()
    (alpha.root / "full" / "notes").write_text("")
    (alpha.root / "file").write_text("")
    alpha.former("old")
    before = files_in(alpha.folder)
    alpha.refusal(OWNER, handover(folder=name))
    assert files_in(alpha.folder) == before
    assert not Path("/tmp/isthmus-evil").exists()


def test_a_run_folder_is_made_below_the_root_and_numbered(tmp_path: Path) -> None:
    from datetime import datetime

    root, now = RunRoot.at(tmp_path), datetime(2026, 11, 20, 10, 30, 5)
    assert root.make("a/b", "ring", now, "text").relative_to(tmp_path) == Path("a/b")
    assert (tmp_path / "a" / "b" / "config.toml").read_text() == "text"
    made = [root.make("", "ring", now, "").name for _ in range(2)]
    assert made == ["ring-20261120-103005", "ring-20261120-103005-2"]
    with pytest.raises(ConfigError, match="names of letters"):
        root.make("", "../ring", now, "")


@pytest.mark.parametrize("kind", ["watch", "log", "stop", "end"])
def test_only_runs_that_the_daemon_knows_can_be_named(alpha: Alpha, kind: str) -> None:
    known = Path(alpha.former("run"))
    (alpha.folder / "stranger").symlink_to(known)
    for run in (alpha.folder / "stranger", f"{known}/.", f"{known}/../run", "run", "/etc", "", 7, None, [], {}):
        said = run if not isinstance(run, Path) else str(run)
        alpha.refusal(OWNER, {"type": kind, "run": said, "name": "daemon", "reason": ""})


@pytest.mark.parametrize("run", ["old", "link", "../outside", "/etc", "full", "", ".", "a\0b", 7, None, [], {}])
def test_only_a_folder_that_was_made_ready_goes_on(alpha: Alpha, run: object) -> None:
    outside = alpha.folder / "outside"
    outside.mkdir()
    (alpha.root / "link").symlink_to(outside)
    (alpha.root / "full").mkdir()
    alpha.former("old")
    before = files_in(alpha.folder)
    alpha.refusal(OWNER, {"type": "go-on", "run": run, "is_watched": False})
    assert files_in(alpha.folder) == before
    assert alpha.asks(OWNER, {"type": "machine"})["runs"] == []


def test_a_run_goes_on_in_one_folder_alone(alpha: Alpha, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(shutil.copytree(copied(3, "decoupled-diloco", alpha.folder), alpha.root / "copy"))
    cluster = {**CLUSTER, "term": 1, "former": "", "sites": [{**CLUSTER["sites"][0], "kinds": []}]}
    (folder / CLUSTER_FILE).write_text(json.dumps(cluster))
    run = load(folder).run
    monkeypatch.setattr(alpha.daemon, "run_names", lambda: [run])
    assert run in alpha.refusal(OWNER, {"type": "go-on", "run": "copy", "is_watched": False})[2]


@pytest.mark.parametrize("name", ["../over", "../../secret", "/etc/passwd", "logs/daemon", "daemon.log", "", "\0"])
def test_only_logs_of_hosts_can_be_named(alpha: Alpha, name: str) -> None:
    run = alpha.former("run")
    (alpha.root / "secret.log").write_text("nobody is to read this")
    assert "nobody" not in str(alpha.refusal(OWNER, {"type": "log", "run": run, "name": name}))


# -- absurd requests ---------------------------------------------------------------------------------------------------


CLUSTER = handover()["handover"]["cluster"]
ABSURD: list[dict[str, Any]] = [
    {"spec": spec(roles={"learner": 10**9})},
    {"spec": spec(roles={"learner": LEARNERS_MAX, "syncer": HOSTS_MAX - LEARNERS_MAX + 1})},
    {"spec": spec(roles={"learner": LEARNERS_MAX + 1})},
    {"spec": spec(most={"learner": LEARNERS_MAX + 1})},
    {"spec": spec(roles={"learner": -1})},
    {"spec": spec(roles={"learner": "many"})},
    {"spec": spec(roles={"learner": 1.5})},
    {"spec": spec(roles=[])},
    {"spec": spec(most={"learner": 1 << 62})},
    {"spec": spec(run="../run")},
    {"spec": spec(run=["run"])},
    {"spec": spec(run="r" * 200)},
    {"spec": spec(here={})},
    {"spec": spec(job={})},
    {"spec": []},
    {"spec": None},
    {"cluster": {**CLUSTER, "home": "beta"}},
    {"cluster": {**CLUSTER, "sites": {}}},
    {"cluster": {**CLUSTER, "placement": ["learner/0"]}},
    {"cluster": {**CLUSTER, "placement": {"learner": "alpha"}}},
    {"cluster": []},
    {"graph": "[" * 100_000},
    {"graph": "not json"},
    {"graph": None},
]


def test_a_run_that_does_not_fit_into_the_ports_is_refused_and_leaves_nothing(alpha: Alpha) -> None:
    alpha.daemon.config = replace(alpha.daemon.config, ports="7401-7407")
    roles = {"learner": 1, "syncer": 2, "evaluator": 1, "recorder": 1}
    cluster = {**CLUSTER, "term": 1, "former": "", "sites": [{**CLUSTER["sites"][0], "kinds": []}]}
    job = {**spec()["job"], "tokens_by_slot": [], "tokens_at_most": 1, "has_gradients": False}
    told = spec(roles=roles, job=job, tokens_of_step=[1], transport="zmq")
    _, expected, found, _ = alpha.refusal(OWNER, handover(cluster=cluster, spec=told))
    assert (expected, found) == ("8 free ports, 2 for each of 4 hosts that listen", "7 in --ports 7401-7407")
    assert files_in(alpha.root) == []


@pytest.mark.parametrize("changed", ABSURD, ids=lambda changed: str(changed)[:40])
def test_an_absurd_run_is_refused_and_leaves_nothing(alpha: Alpha, changed: dict[str, Any]) -> None:
    alpha.refusal(OWNER, handover(**changed))
    assert files_in(alpha.root) == []
    assert alpha.asks(OWNER, {"type": "machine"})["runs"] == []


MESSAGES: list[dict[str, Any]] = [
    {"type": "link"},
    {"type": "link", "name": "beta", "instance": "i" * 100_000, "runs": [], "follows": [], "islands": 1},
    {"type": "link", "name": "beta", "instance": "1", "runs": [], "follows": [], "islands": "many"},
    {"type": "link", "name": "beta", "instance": "1", "runs": 7, "follows": [], "islands": 1},
    {"type": "link", "name": "beta", "instance": "1", "runs": [], "follows": 7, "islands": 1},
    {"type": "t" * 100_000},
    {"type": "\x1b[2J\nadmits gamma"},
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message)[:40])
def test_an_absurd_message_of_a_machine_is_refused_and_the_daemon_goes_on(
    alpha: Alpha, message: dict[str, Any]
) -> None:
    assert len(str(alpha.refusal(BETA, message))) < 2000
    assert alpha.asks(OWNER, {"type": "machine"})["type"] == "machine"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///etc", "a URL that names a store, such as s3://bucket/path"),
        ("/etc", "a URL that names a store, such as s3://bucket/path"),
        ("memory://nothing/run", "a snapshot in memory://nothing/run"),
    ],
)
def test_a_home_that_is_to_go_on_from_a_store_reads_no_folder_and_leaves_nothing_of_what_it_refuses(
    alpha: Alpha, url: str, expected: str
) -> None:
    message = {"type": "restore", "url": url, "run": "next", "sites": [], "going_on": {}}
    assert alpha.refusal(OWNER, message)[1] == expected
    assert files_in(alpha.root) == []
