"""Loops that start themselves, and join a home with a daemon of their own: in real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.machine.loop_guest import LoopGuest
from isthmus.programs.loop_task import INVITE
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import BodyRaised, Ended, Exited, Joined, NotStarted
from isthmus.runtime.system.lines import ProcessLine
from tests.patience import PATIENCE
from tests.programs.engine.machine.daemon_place import Place
from tests.programs.engine.results.event_lines import incidents_in

pytestmark = [pytest.mark.torch, pytest.mark.process]

SCRIPT = """
import json, os, sys, time
import torch
import isthmus

how, home = sys.argv[1], json.loads(sys.argv[2])
torch.manual_seed(0)
wide = 9 if how == "other" else 8
model = torch.nn.Sequential(torch.nn.Linear(32, wide), torch.nn.BatchNorm1d(wide), torch.nn.Linear(wide, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)

def evaluate(module):
    if how == "misjudges":
        raise ValueError("a mistake in my evaluation")
    module.eval()
    torch.manual_seed(5)
    with torch.no_grad():
        x = torch.randn(64, 32)
        return {"loss": ((module(x) - x.sum(1, keepdim=True)) ** 2).mean(), "process": os.getpid()}

def train():
    own = dict(evaluate=evaluate) if how in ("evaluates", "misjudges") else {}
    with isthmus.island(model, optimizer, **home, **own) as island:
        begun = island.position
        island.keep(scheduler)
        print("BEGINS", json.dumps([island.slot, begun, len(optimizer.state), scheduler.last_epoch]), flush=True)
        draw = torch.Generator().manual_seed(island.seed + begun)
        for x in island(iter(lambda: torch.randn(64, 32, generator=draw), None)):
            time.sleep(0.004)
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            island.step(loss, tokens=64)
            if how == "leaves" and island.position == begun + 40:
                break
            if how == "freezes" and island.position == begun + 40:
                model[0].requires_grad_(False)
        return island.is_over

for _ in range(2 if how == "leaves" else 1):
    was_over = train()
total = float(sum(leaf.double().abs().sum() for leaf in model.state_dict().values() if leaf.is_floating_point()))
print("LOSS", float(evaluate(model)["loss"]), flush=True)
print("END", json.dumps([was_over, total, "jax" in sys.modules]), flush=True)
"""
HOME = """
[[machine]]
name = "home"
address = "{address}"

[run]
task = "isthmus.island"
tokens = {tokens}
"""
FOR_EVER = 10**9


class Home(Place):
    """A folder with a home of loops, and the loops that were started there."""

    def __init__(self, folder: Path, script: str = SCRIPT) -> None:
        super().__init__(folder)
        (folder / "train.py").write_text(script)
        self.loops: dict[str, subprocess.Popen[Any]] = {}
        self.address = ""

    def open(self, *more: str, tokens: int = FOR_EVER, keys: bool = False) -> subprocess.Popen[str]:
        """Start the daemon of the home."""
        with socket.create_server(("127.0.0.1", 0)) as server:  # A port that nobody has: the kernel gives others next.
            self.address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        (self.folder / "home.toml").write_text(HOME.format(tokens=tokens, address=self.address))
        config: tuple[str, ...] = ()
        if keys:
            assert self.call("keygen", "home").returncode == 0
            text = (self.folder / "home.toml").read_text().replace("[run]", 'public_key = "home.pub"\n[run]')
            (self.folder / "home.toml").write_text(f'{text}[keys]\nsecret = "home.key"\n')
            (self.folder / "own.toml").write_text('[keys]\nsecret = "home.key"\n')
            config = ("--config", "own.toml")
        command = ("daemon", "--name", "home", "--listen", self.address, "--run", "home.toml", *config)
        with self.text_of("home").open("w") as log:
            daemon = self.begin(*command, "--run-dir", "run", "--until-over", *more, stdout=log)
        self.says("home", "listens at")
        return daemon

    def loop(
        self,
        log: str,
        how: str = "trains",
        variables: dict[str, str] | None = None,
        launcher: Sequence[str] = (),
        **home: Any,
    ) -> None:
        """Start a script, as its user does, or as a launcher does that the user calls."""
        home = home or {"address": self.address, "name": log}
        self.start(log, [*launcher, "train.py", how, json.dumps(home)], variables)

    def start(self, log: str, arguments: Sequence[str], variables: dict[str, str] | None = None) -> None:
        """Start Python, with its output in that log."""
        environment = {**self.environment, **(variables or {})}
        with self.text_of(log).open("a") as file:
            self.loops[log] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def text_of(self, name: str) -> Path:
        """The output of the home, or of a loop."""
        return self.folder / f"{name}.txt"

    def says(self, name: str, words: str, count: int = 1) -> str:
        """The line with these words, for that time."""

        def found() -> str:
            lines = [line for line in self.text_of(name).read_text().splitlines() if words in line]
            return lines[count - 1] if len(lines) >= count else ""

        line: str = self.wait_for(found)
        return line

    def begun(self, name: str, count: int = 1) -> list[int]:
        """Slot, position, moments and epochs with which a loop begins for that time."""
        told: list[int] = json.loads(self.says(name, "BEGINS ", count).removeprefix("BEGINS "))
        return told

    def ended(self, name: str) -> list[Any]:
        """What a loop says after its `with`; it has ended."""
        assert self.loops[name].wait(PATIENCE) == 0
        told: list[Any] = json.loads(self.says(name, "END ").removeprefix("END "))
        return told

    def voters(self) -> list[list[int]]:
        """The slots in each merge."""
        path = self.folder / "run" / "merges.jsonl"
        return [json.loads(line)["voters"] for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_vote(self, slot: int) -> None:
        """Wait for one more merge with an answer of this slot."""
        before = len(self.voters())
        self.wait_for(lambda: any(slot in each for each in self.voters()[before:]))

    def close(self) -> None:
        for loop in self.loops.values():
            loop.kill()
            loop.wait()
        super().close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


def test_loops_join_leave_die_and_come_back_and_the_others_go_on(home: Home) -> None:
    daemon = home.open()
    home.loop("alpha")
    assert home.begun("alpha") == [0, 0, 0, 0]
    home.loop("copy", address=home.address, name="alpha")
    assert home.loops["copy"].wait(PATIENCE) == 1
    assert "expected a name that no daemon on this machine has" in home.text_of("copy").read_text()
    home.loop("beta", "leaves")
    home.wait_for_vote(1)
    home.begun("beta", 2)  # The same process joins again, in the slot that it had.
    home.loop("gamma")
    home.wait_for_vote(2)
    state = home.folder / "state" / "isthmus" / "runs" / "gamma"
    home.wait_for(lambda: list(state.glob("*/local/learner-2")))
    home.loops["gamma"].kill()
    home.loops["gamma"].wait()
    home.loop("gamma")  # At once: its daemon may still be about to leave.
    slot, position, moments, epochs = home.begun("gamma", 2)
    assert slot == 2
    assert position > 0
    assert moments == 6
    assert epochs > 0
    home.loop("delta", "freezes")  # What is refused of it ends no run of others.
    assert home.loops["delta"].wait(PATIENCE) == 1
    assert "ConfigError: " in home.text_of("delta").read_text()
    home.says("home", "machine delta leaves")
    home.wait_for_vote(0)
    home.wait_for_vote(2)
    assert home.call("stop", "run").returncode == 0
    one, other = home.ended("alpha"), home.ended("gamma")
    assert one == other  # Both have the last model, and neither has jax.
    assert one[0]
    assert not one[2]
    assert not home.ended("beta")[0]
    assert daemon.wait(PATIENCE) == 0
    summary = home.summary("run")
    assert summary["outcome"] == "stopped"
    assert [account["difference"] for account in summary["fragment_accounts"]] == [0] * summary["fragments"]
    assert len([each for each in incidents_in(home.folder / "run", "") if isinstance(each, Joined)]) == 6
    raised = [each.error for each in incidents_in(home.folder / "run", "") if isinstance(each, BodyRaised)]
    assert [(each.exception, each.is_refusal) for each in raised if each.exception] == [("ConfigError", False)]
    ends = [each.end for each in incidents_in(home.folder / "run", "") if isinstance(each, Ended)]
    assert len(ends) >= 2
    assert not any(isinstance(each, NotStarted) for each in ends)  # No next life was asked for.
    home.wait_for(lambda: not home.processes())


def test_a_loop_evaluates_between_its_steps_and_another_takes_over_when_it_dies(home: Home) -> None:
    daemon = home.open()
    home.loop("wrong", "misjudges")
    assert home.loops["wrong"].wait(PATIENCE) == 1
    assert home.text_of("wrong").read_text().splitlines()[-1] == "ValueError: a mistake in my evaluation"
    home.says("home", "machine wrong leaves")
    ends = [each.end for each in incidents_in(home.folder / "run", "") if isinstance(each, Ended)]
    assert ends == [Exited(1)]
    home.loop("alpha")
    home.loop("beta", "evaluates")
    home.loop("gamma", "evaluates")
    path = home.folder / "run" / "evaluations.jsonl"

    def evaluations() -> list[dict[str, Any]]:
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def processes() -> list[int]:
        return [int(each["metrics"]["process"]) for each in evaluations()]

    home.wait_for(processes)
    home.wait_for_vote(home.begun("alpha")[0])
    first, *others = [home.loops[name] for name in ("beta", "gamma") if home.loops[name].pid == processes()[-1]]
    assert not others
    assert set(processes()) == {first.pid}
    first.kill()
    first.wait()
    name = next(each for each in ("beta", "gamma") if home.loops[each] is not first)
    home.wait_for(lambda: processes()[-1] == home.loops[name].pid)
    assert home.call("stop", "run").returncode == 0
    assert home.ended("alpha")[:2] == home.ended(name)[:2]  # Its evaluations have left its values as they were.
    assert daemon.wait(PATIENCE) == 0
    summary, last = home.summary("run"), float(home.says(name, "LOSS ").removeprefix("LOSS "))
    assert summary["eval_loss_final"] == pytest.approx(last, rel=1e-6)
    assert summary["eval_loss_initial"] > summary["eval_loss_final"]
    kinds = [each["kind"] for each in evaluations()]
    assert kinds == ["initial", *["during"] * (len(kinds) - 2), "final"]


def test_loops_join_by_invitation_and_an_unlike_model_is_refused(home: Home) -> None:
    daemon = home.open(keys=True)
    assert home.call("invite", "--count", "4", "--for", "beta", "--cluster", "home.toml").returncode == 0
    home.loop("one", invite="beta.invite")
    home.wait_for_vote(0)
    home.loop("third", "other", invite="beta.invite", name="beta-third")
    assert home.loops["third"].wait(PATIENCE) == 1
    assert "Joining with this model: expected the run's leaf" in home.text_of("third").read_text()
    home.loop("two", variables={INVITE: (home.folder / "beta.invite").read_text()}, name="beta-two")
    assert home.begun("two")[0] == 1  # The one that was refused had no slot.
    assert "machine beta-third does not join" in home.text_of("home").read_text()
    home.wait_for_vote(1)
    assert home.call("stop", "run").returncode == 0
    one, other = home.ended("one"), home.ended("two")
    assert one == other
    assert daemon.wait(PATIENCE) == 0
    assert home.summary("run")["outcome"] == "stopped"


def test_a_home_that_begins_no_run_with_a_model_says_so_and_waits_for_another(home: Home) -> None:
    daemon = home.open(tokens=10)
    for name in ("alpha", "beta"):
        home.loop(name)
        assert home.loops[name].wait(PATIENCE) == 1
        assert "at least one step, which is 64 tokens" in home.text_of(name).read_text()
    assert daemon.poll() is None
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(PATIENCE) == 0


class Machine:
    """What a guest knows of its daemon."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.has_ended = False

    def request_end(self) -> None:
        self.has_ended = True

    def later(self, seconds: float, call: Any) -> None:
        raise AssertionError("it waits, though no run is over")


class Loop:
    """As much of an event loop as a guest needs."""

    def add_reader(self, descriptor: int, call: Any) -> None:
        pass

    def remove_reader(self, descriptor: int) -> None:
        pass

    def call_soon(self, call: Any, *arguments: Any) -> None:
        call(*arguments)


def test_a_loop_whose_life_the_home_ends_hears_of_it_and_is_not_killed(tmp_path: Path) -> None:
    ours, its = ProcessLine.pair()
    process = subprocess.Popen(["sleep", "1000"])
    try:
        guest, loop = LoopGuest(process.pid, ProcessLine(its)), Loop()
        machine = Machine(loop)
        guest.start(machine)  # type: ignore[arg-type]
        started: list[int] = []
        member, ends = Member(Replica("learner", 3), 1), list[tuple[Member, Exited]]()
        launch = guest.life(tmp_path)
        launch(member, "ipc://x", started.append)
        assert started == [process.pid]
        guest.watch(member, process.pid, lambda member, end, seconds: ends.append((member, end)))
        guest.kill(member)
        assert ends == [(member, Exited(signal="SIGKILL"))]
        assert machine.has_ended
        assert process.poll() is None
        with pytest.raises(OSError, match="has ended"):
            launch(Member(Replica("learner", 3), 2), "ipc://x", started.append)
        told = ours.hear()
        assert [list(each) for each in told] == [["life"], ["lost"]]
    finally:
        process.kill()
        process.wait()
        os.close(guest._pidfd)
        ours.close()
        its.close()
