"""A daemon and processes that play hosts: whom it replaces, whom it leaves alone, and what the next daemon knows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from isthmus.runtime.clock import Duration, seconds
from isthmus.runtime.cores import membership_messages as presence
from isthmus.runtime.cores.membership_messages import Excused
from isthmus.runtime.daemon.ground import LocalGround
from isthmus.runtime.daemon.home_daemon import Daemon
from isthmus.runtime.daemon.ledger import FILE
from isthmus.runtime.host.own_process import DaemonSilence
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision import liveness, lives, station
from isthmus.runtime.supervision.home_events import RunRoles, UserTerms
from isthmus.runtime.supervision.incidents import (
    Adopted,
    Condemned,
    Ended,
    Exited,
    GivenUp,
    Hurried,
    Incident,
    NoFirstHeartbeat,
    NotStarted,
    NumbersLost,
    Ordered,
    RestartsExhausted,
    incident_of,
)
from isthmus.runtime.system.processes import started_at
from isthmus.runtime.wire.control_client import ask
from tests.programs.engine.results.event_lines import incidents_in

pytestmark = [pytest.mark.process]

HOST = Path(__file__).with_name("supervised_host.py")
CAST = RunRoles(roles={"learner": 2, "recorder": 1}, least={"learner": 1})
HOSTS = ("learner/0", "learner/1", "recorder/0")
PAUSE = threading.Event()
SECONDS_MAX = 300.0
"""For anything that is waited for: on a busy machine a process needs seconds to begin."""
PATIENCE = seconds(3)
"""With hosts that are silent: longer than one that lives and gets no core for a while."""


class Launch:
    """Starts processes that play hosts; `known` is called with what tells their pids, `fails` with who is to start."""

    def __init__(
        self,
        folder: Path,
        known: Callable[[Callable[[], None]], Any] = lambda tell: tell(),
        fails: Callable[[Member], bool] = lambda member: False,
    ) -> None:
        self.folder, self.known, self.fails = folder, known, fails
        self.prepared: list[list[str]] = []

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        self.prepared.append([str(replica) for replica in wanted])
        return list(wanted)

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        if self.fails(member):
            raise OSError("no room")
        command = [sys.executable, str(HOST), str(self.folder), str(member.replica), str(member.incarnation), endpoint]
        pid = os.posix_spawn(sys.executable, command, os.environ, setsid=True)
        self.known(lambda: started(pid))

    def script_log(self, replica: Replica) -> None:
        """There is no script."""

    def close(self) -> None:
        """Nothing is held."""


class Watched:
    """A daemon on a loop in a thread of its own."""

    def __init__(
        self, folder: Path, patience: Duration = liveness.PATIENCE, launch: Launch | None = None, **behaviours: str
    ) -> None:
        self.folder, self._launch = folder, launch or Launch(folder)
        told = {name.replace("_", "/"): behaviour for name, behaviour in behaviours.items()}
        (folder / "behave").write_text(json.dumps(told))
        self.is_over, self._is_there = threading.Event(), threading.Event()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=[patience])
        self._thread.start()
        assert self._is_there.wait(SECONDS_MAX)

    def _serve(self, patience: Duration) -> None:
        self.daemon = Daemon(
            LocalGround(self._loop, self.folder, name="test", launch=self._launch),
            CAST,
            run=self.folder.name,
            name="test",
            on_over=lambda daemon: self.is_over.set(),
            patience=patience,
        )
        self._loop.call_soon(self._is_there.set)
        self.daemon.start()
        self._loop.run_forever()
        self.daemon.close()
        self._loop.close()

    def later(self, call: Callable[[], None]) -> None:
        """Call it on the daemon's loop."""
        self._loop.call_soon_threadsafe(call)

    def die(self) -> None:
        """End as a daemon that is killed: its hosts go on."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.daemon.end, "the test is over")
            assert self.is_over.wait(SECONDS_MAX)
            self.die()

    def say(self, kind: str, **more: Any) -> dict[str, Any] | None:
        return ask(self.daemon.endpoint, {"type": kind, **more})

    def host(self, name: str) -> dict[str, Any]:
        status = self.say("status")
        assert status is not None
        found: dict[str, Any] = next(host for host in status["hosts"] if host["name"] == name)
        return found

    def learners(self) -> list[dict[str, Any]]:
        return [self.host("learner/0"), self.host("learner/1")]

    def wait_for(self, what: Callable[[], Any]) -> Any:
        until = time.monotonic() + SECONDS_MAX
        while not (found := what()):
            assert time.monotonic() < until, self.incidents()
            PAUSE.wait(0.01)
        return found

    def wait_for_life(self, name: str, incarnation: int) -> dict[str, Any]:
        """Wait until this life of a host serves."""

        def lives() -> dict[str, Any]:
            host = self.host(name)
            return host if host["incarnation"] == incarnation and host["phase"] == "serving" else {}

        found: dict[str, Any] = self.wait_for(lives)
        return found

    def incidents(self, life: str = "") -> list[Incident]:
        return incidents_in(self.folder, life)


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Starts daemons, one after another, of one run."""
    started: list[Watched] = []

    def begin(**options: Any) -> Watched:
        started.append(Watched(tmp_path, **options))
        return started[-1]

    yield begin
    started[-1].close()


@pytest.mark.long
def test_a_host_that_is_silent_for_too_long_is_killed_and_replaced(supervise: Callable[..., Watched]) -> None:
    watched = supervise(patience=PATIENCE, learner_1="hang")
    pid = watched.wait_for_life("learner/1", 1)["pid"]
    watched.wait_for_life("learner/0", 1)
    assert watched.wait_for_life("learner/1", 2)["pid"] != pid
    assert started_at(pid) is None
    assert watched.host("learner/0")["incarnation"] == 1
    condemned, ended = watched.incidents("learner/1#1")[-2:]
    assert isinstance(condemned, Condemned)
    assert isinstance(condemned.verdict, presence.Silence)
    assert ended == Ended(Exited(signal="SIGKILL"), condemned.verdict)


@pytest.mark.long
def test_a_host_that_is_stopped_is_waited_for_until_the_run_is_to_stop(
    supervise: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "HURRY", seconds(0.5))
    watched = supervise(patience=PATIENCE)
    pids = [watched.wait_for_life(name, 1)["pid"] for name in ("learner/0", "learner/1")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    stopped = watched.wait_for(lambda: [host for host in watched.learners() if host["state"] == "stopped"][1:])
    told = incident_of(stopped[0]["reason"])
    assert isinstance(told, Excused)
    assert (told.excuse, told.pid, told.machine) == ("stopped", pids[1], "")
    os.kill(pids[0], signal.SIGCONT)
    watched.wait_for(lambda: watched.host("learner/0")["state"] == "alive")
    assert [host["incarnation"] for host in watched.learners()] == [1, 1]
    assert watched.say("stop") is not None
    watched.wait_for(lambda: watched.host("learner/1")["phase"] == "gone")
    assert Condemned(Hurried()) in watched.incidents("learner/1#1")
    assert watched.host("learner/0")["incarnation"] == 1


@pytest.mark.soak
def test_a_process_that_never_says_a_word_is_replaced(
    supervise: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = UserTerms(start=seconds(10))  # On a busy machine those that speak need a while to begin, too.
    monkeypatch.setattr(f"{__name__}.CAST", msgspec.structs.replace(CAST, user=terms))
    watched = supervise(learner_1="mute")
    watched.wait_for_life("learner/1", 2)
    assert watched.host("learner/0")["incarnation"] == 1
    assert Condemned(NoFirstHeartbeat(10_000_000_000)) in watched.incidents("learner/1#1")


@pytest.mark.long
def test_a_learner_that_ends_again_and_again_is_given_up_while_there_are_enough(
    supervise: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "BACKOFF_SECONDS", (0.0, 0.01))
    watched = supervise(learner_1="crash")
    watched.wait_for_life("learner/0", 1)
    watched.wait_for(lambda: watched.host("learner/1")["state"] == "given up")
    assert watched.incidents("learner/1#6")[-1] == GivenUp(6, Ended(Exited(3)))
    assert watched.daemon.outcome == "running"


def test_a_host_that_ends_again_and_again_and_is_needed_fails_the_run(
    supervise: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "BACKOFF_SECONDS", (0.0, 0.01))
    watched = supervise(recorder_0="crash")
    assert watched.is_over.wait(SECONDS_MAX)
    assert watched.daemon.outcome == "failed"
    assert watched.daemon.failure == RestartsExhausted("recorder/0", 6, Ended(Exited(3)))
    assert watched.daemon.lost == Replica("recorder", 0)


@pytest.mark.long
def test_a_learner_that_dies_while_the_run_stops_is_missed_only_if_it_was_the_last(
    supervise: Callable[..., Watched],
) -> None:
    watched = supervise()
    first = watched.wait_for_life("learner/0", 1)["pid"]
    second = watched.wait_for_life("learner/1", 1)["pid"]
    assert watched.say("stop") is not None
    os.kill(second, signal.SIGKILL)
    watched.wait_for(lambda: watched.host("learner/1")["phase"] == "gone")
    os.kill(first, signal.SIGKILL)
    watched.wait_for_life("learner/0", 2)
    assert (watched.host("learner/1")["phase"], watched.host("learner/1")["incarnation"]) == ("gone", 1)


def test_a_host_that_speaks_before_its_pid_is_known_is_let_in_later(
    supervise: Callable[..., Watched], tmp_path: Path
) -> None:
    waiting: list[Callable[[], None]] = []
    watched = supervise(launch=Launch(tmp_path, known=waiting.append))

    def heard() -> int:
        status = watched.say("status") or {}
        return sum(count for reason, count in status["refused"].items() if reason == "too early")

    watched.wait_for(lambda: heard() > len(HOSTS))
    for tell in waiting:
        watched.later(tell)
    for name in HOSTS:
        watched.wait_for_life(name, 1)
    assert watched.incidents() == []


def test_a_machine_without_room_is_asked_again(
    supervise: Callable[..., Watched], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "BACKOFF_SECONDS", (0.1,))
    watched = supervise(launch=Launch(tmp_path, fails=lambda member: member.incarnation == 2))
    os.kill(watched.wait_for_life("learner/1", 1)["pid"], signal.SIGKILL)
    watched.wait_for_life("learner/1", 3)
    assert watched.incidents("learner/1#2") == [Ended(NotStarted("no room"))]


@pytest.mark.long
def test_a_host_of_another_run_is_left_alone(supervise: Callable[..., Watched], tmp_path: Path) -> None:
    watched = supervise()
    watched.wait_for_life("learner/0", 1)
    other = tmp_path / "other"
    other.mkdir()
    (other / "behave").write_text("{}")
    command = [sys.executable, str(HOST), str(other), "learner/0", "7", watched.daemon.endpoint]
    with subprocess.Popen(command) as stranger:
        watched.wait_for(lambda: "malformed hello: a host of another run" in (watched.say("status") or {})["refused"])
        assert stranger.poll() is None
        stranger.kill()
    assert watched.host("learner/0")["incarnation"] == 1


def test_the_next_daemon_adopts_the_hosts_that_live(supervise: Callable[..., Watched]) -> None:
    first = supervise()
    pids = [first.wait_for_life(name, 1)["pid"] for name in HOSTS]
    first.die()
    os.kill(pids[1], signal.SIGKILL)
    launch = Launch(first.folder)
    second = supervise(launch=launch)
    second.wait_for_life("learner/1", 2)
    assert launch.prepared == [list(HOSTS), ["learner/1"]]  # At once, and for the one that is started.
    assert [second.wait_for_life(name, 1)["pid"] for name in ("learner/0", "recorder/0")] == [pids[0], pids[2]]
    assert second.incidents("learner/0#1") == [Adopted()]


@pytest.mark.long
def test_a_daemon_whose_ledger_is_lost_adopts_the_hosts_that_speak_and_numbers_go_on_far_beyond(
    supervise: Callable[..., Watched], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "ADOPT", seconds(5))
    monkeypatch.setattr(station, "UNSURE_BEATS", 8)
    first = supervise()
    pids = [first.wait_for_life(name, 1)["pid"] for name in HOSTS]
    first.die()
    (tmp_path / FILE).unlink()
    os.kill(pids[1], signal.SIGKILL)
    second = supervise()
    next_number = 1 + 1 + lives.NUMBERS_SKIPPED
    assert second.wait_for(lambda: second.host("learner/1")["incarnation"]) >= next_number
    second.wait_for(lambda: second.host("learner/1")["phase"] == "serving")
    assert [second.wait_for_life(name, 1)["pid"] for name in ("learner/0", "recorder/0")] == [pids[0], pids[2]]
    assert NumbersLost(next_number) in second.incidents("daemon/0#1")


@pytest.mark.long
def test_the_next_daemon_of_a_run_that_was_ended_ends_what_lives(supervise: Callable[..., Watched]) -> None:
    first = supervise()
    pids = [first.wait_for_life(name, 1)["pid"] for name in HOSTS]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # So that a word from the daemon alone does not end them.
    assert first.say("end", reason="enough") is not None
    first.die()
    second = supervise()
    assert second.is_over.wait(SECONDS_MAX)
    assert second.daemon.failure == Ordered("enough")
    assert [started_at(pid) for pid in pids] == [None, None, None]


@pytest.mark.long
def test_the_next_daemon_knows_that_the_run_is_to_stop(supervise: Callable[..., Watched]) -> None:
    first = supervise()
    first.wait_for_life("learner/0", 1)
    first.wait_for_life("recorder/0", 1)
    assert first.say("stop") is not None
    first.die()
    second = supervise(recorder_0="over")
    os.kill(second.wait_for_life("recorder/0", 1)["pid"], signal.SIGKILL)
    assert second.is_over.wait(SECONDS_MAX)
    assert second.daemon.outcome == "stopped"


def test_the_next_daemon_of_a_run_that_is_over_starts_nothing(supervise: Callable[..., Watched]) -> None:
    first = supervise(recorder_0="over")
    assert first.is_over.wait(SECONDS_MAX)
    first.die()
    second = supervise()
    assert second.is_over.wait(SECONDS_MAX)
    assert second.daemon.outcome == "done"
    status = second.say("status")
    assert status is not None
    assert [(host["incarnation"], host["pid"]) for host in status["hosts"]] == 3 * [(1, None)]


def test_what_a_process_slept_itself_is_not_the_daemons_silence() -> None:
    silence = DaemonSilence(0.0, 0.25)
    assert silence.beat(0.25) == 0.25
    assert silence.beat(0.5) == 0.5
    assert silence.beat(100.75) == 0.75  # A hundred seconds late.
    assert silence.late == 100.0
    assert silence.beat(101.0) == 1.0
    silence.heard(101.125)
    assert silence.beat(101.25) == 0.125
