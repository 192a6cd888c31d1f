"""Loops of the user's own as learners: what a script has to bring, and runs of it in real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.loop_script import ISLAND, LoopScript
from isthmus.programs.loop_task import asked_of
from isthmus.runtime.errors import INTERRUPTED_STATUS, ConfigError
from isthmus.runtime.supervision.incidents import BodyRaised, Ended, Exited, LoopLeft, SameData
from isthmus.runtime.system.processes import started_at
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import FOREVER, Run, resume
from tests.torch_tasks.test_torch_runs import reports

pytestmark = [pytest.mark.torch, pytest.mark.process]

SCRIPT = """
import atexit, json, os, sys, time
import torch
import isthmus

def fork():
    # A process in a session of its own, which outlives this one, until there is a file.
    pid = os.fork()
    if not pid:
        os.setsid()
        while not os.path.exists("enough"):
            time.sleep(0.02)
        os._exit(0)
    return pid

def tear_down():
    time.sleep(9)  # Longer than the silence that a host may keep.
    print("torn down", flush=True)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
how = sys.argv[1]
forked = [fork()] if how == "forks" else []

def evaluate(module):
    assert module is model
    with torch.no_grad():
        x = torch.ones(64, 32)
        return {"loss": ((module(x) - 32.0) ** 2).mean(), "first": module[0].bias[0]}

with isthmus.island(model, optimizer, evaluate=evaluate if how == "evaluates" else None) as island:
    begun = island.position
    forked += [fork(), fork()] if how == "forks" else []
    print("forked", *forked)
    island.keep(scheduler)
    print("begins at", begun, "with", len(optimizer.state), "moments, rate", scheduler.last_epoch, flush=True)
    draw = torch.Generator().manual_seed(0 if how == "raises" else island.seed + begun)
    for x in island(iter(lambda: torch.randn(64, 32, generator=draw), None)):
        time.sleep(0.004)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        island.metrics(rate=scheduler.get_last_lr()[0])
        island.step(loss, tokens=64)
        if island.slot == 1 and island.position == begun + 40:
            if how == "leaves":
                break
            if how == "raises" and not begun:
                atexit.register(tear_down)
                raise ValueError("a mistake of mine")
    was_over = island.is_over
total = float(sum(leaf.double().abs().sum() for leaf in model.state_dict().values() if leaf.is_floating_point()))
print("END", json.dumps([was_over, total, "jax" in sys.modules, island.slot, island.slots]), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []
    (tmp_path / "train.py").write_text(SCRIPT)

    def begin(how: str, *, tokens: int) -> Run:
        runs.append(LoopRun(tmp_path, how, tokens=tokens))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


class LoopRun(Run):
    """A run of the script in `folder`."""

    def __init__(self, folder: Path, how: str, *, tokens: int) -> None:
        super().__init__(folder, "--loop", "train.py", tokens=tokens, after=("--", how))


def said(run: Run, slot: int) -> str:
    return (run.folder / "logs" / f"learner-{slot}.log").read_text()


def ends(run: Run, slot: int) -> list[Any]:
    """What a script has said after its `with`."""
    lines = [line for line in said(run, slot).splitlines() if line.startswith("END ")]
    return [json.loads(line.removeprefix("END ")) for line in lines]


def test_loops_train_and_one_that_was_killed_goes_on(start: Callable[..., Run]) -> None:
    run = start("trains", tokens=FOREVER)
    run.wait_for(lambda: (run.folder / "local" / "learner-1").exists())
    run.wait_for_merges(10)
    run.kill("learner/1")
    run.wait_for(lambda: run.host("learner/1").get("incarnation") == 2)
    run.wait_for(lambda: any(line.get("began") for line in reports(run, 1)))
    run.wait_for_merges(10)
    began = [line["began"][0] for line in reports(run, 1) if line.get("began")]
    assert set(began) <= {"memory", "copy", "snapshot"}
    first, second = [line.split() for line in said(run, 1).splitlines() if line.startswith("begins at ")]
    assert first == ["begins", "at", "0", "with", "0", "moments,", "rate", "0"]
    assert int(second[2]) > 0
    assert second[4] == "6"
    assert int(second[-1]) > 0
    assert {line["metrics"]["rate"] <= 1e-2 for line in reports(run, 0) if line.get("metrics")} == {True}
    run.kill("syncer/0", signal.SIGSTOP)  # A step waits for nobody else.
    before = run.steps()["learner/0"]
    run.wait_for(lambda: run.steps()["learner/0"] > before + 100)
    run.kill("syncer/0", signal.SIGCONT)
    summary = run.stop()
    assert summary["eval_loss_final"] is None
    assert summary["eval_loss_initial"] is None
    (one,), (other,) = ends(run, 0), ends(run, 1)
    assert one[:3] == other[:3]  # Both have the last model, and neither has jax.
    assert one[0]
    assert not one[2]
    assert [one[3:], other[3:]] == [[0, 16], [1, 16]]


def test_a_process_of_the_script_evaluates_what_is_published(start: Callable[..., Run]) -> None:
    run = start("evaluates", tokens=64 * 400)
    summary = run.finish("done")
    assert summary["eval_loss_final"] > 0
    lines = [json.loads(line) for line in (run.folder / "evaluations.jsonl").read_text().splitlines()]
    assert lines[-1]["metrics"]["first"]
    assert ends(run, 0)[0][0]
    assert not [each for each in run.incidents() if isinstance(each, SameData)]
    assert "END" not in (run.folder / "logs" / "evaluator-0.log").read_text()


def test_a_loop_that_ends_early_has_left_and_the_others_go_on(start: Callable[..., Run]) -> None:
    run = start("leaves", tokens=FOREVER)
    run.wait_for(lambda: run.merges() and LoopLeft() in run.incidents("learner/1#1"))
    run.wait_for_merges(10)
    summary = run.stop()
    assert run.incidents("learner/1#1")[-1] == LoopLeft()
    assert [end[0] for end in ends(run, 1)] == [False]
    assert [end[0] for end in ends(run, 0)] == [True]
    assert all(account["lost"] == 0 for account in summary["fragment_accounts"])  # Its last answers count.


def test_an_exception_in_a_loop_is_told_and_the_slot_begins_again(start: Callable[..., Run]) -> None:
    run = start("raises", tokens=FOREVER)
    run.wait_for(lambda: run.host("learner/1").get("incarnation") == 2)
    raised = [each for each in run.incidents("learner/1#1") if isinstance(each, BodyRaised)]
    assert [(each.error.exception, each.error.message) for each in raised] == [("ValueError", "a mistake of mine")]
    assert raised[0].error.file == str(run.here / "train.py")
    assert [each for each in run.incidents() if isinstance(each, SameData)]  # Both draw by one seed.
    log = run.wait_for(lambda: said(run, 1) if said(run, 1).count("begins at ") == 2 else "")
    assert "ValueError: a mistake of mine\ntorn down\nbegins at " in "".join(
        line for line in log.splitlines(keepends=True) if not line.startswith("forked")
    )
    assert Ended(Exited(1), None, raised[0].error) in run.incidents("learner/1#1")
    run.command.send_signal(signal.SIGINT)
    run.command.communicate()


def test_what_a_loop_has_forked_has_no_socket_of_ours_and_the_next_life_begins_beside_it(
    start: Callable[..., Run],
) -> None:
    run = start("forks", tokens=FOREVER)
    run.wait_for(lambda: "forked" in run.story())
    run.wait_for_merges(3)
    before, one, other = (int(pid) for pid in said(run, 1).split("forked ")[1].split("\n")[0].split())
    assert sockets(run.host("learner/1")["pid"])
    assert [sockets(pid) for pid in (before, one, other)] == [set(), set(), set()]
    os.kill(one, signal.SIGTERM)  # It is no loop that may leave.
    run.wait_for(lambda: started_at(one) is None)
    run.kill("learner/1")
    run.wait_for(lambda: said(run, 1).count("begins at ") == 2)
    run.wait_for_merges(3)
    assert started_at(before)
    assert started_at(other)
    (run.here / "enough").write_text("")
    run.stop()


def sockets(pid: int) -> set[str]:
    """The sockets of a process."""
    return {link for each in Path(f"/proc/{pid}/fd").iterdir() if (link := str(each.readlink())).startswith("socket")}


def test_loops_leave_at_a_notice_and_a_resume_starts_them_again(start: Callable[..., Run]) -> None:
    run = start("trains", tokens=FOREVER)
    run.wait_for(lambda: all((run.folder / "local" / f"learner-{slot}").exists() for slot in (0, 1)))
    run.wait_for_merges(10)
    run.command.send_signal(signal.SIGTERM)
    run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == INTERRUPTED_STATUS
    assert not [each for slot in (0, 1) for each in run.incidents(f"learner/{slot}#1") if each == LoopLeft()]
    before = run.merges()
    run.command = resume(run)
    run.wait_for(lambda: run.merges() > before + 5)
    run.wait_for(lambda: said(run, 0).count("begins at ") == 2)
    begins = [line.split() for line in said(run, 0).splitlines() if line.startswith("begins at ")]
    assert int(begins[1][2]) > 0
    assert begins[1][4] == "6"
    run.stop()


# -- what is wrong is said before anything starts ----------------------------------------------------------------------

HEAD = """
import torch, isthmus
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
HELPERS = """
from concurrent.futures import ThreadPoolExecutor

def elsewhere(function, *arguments, **keywords):
    return ThreadPoolExecutor(1).submit(function, *arguments, **keywords).result()

def renew(model):
    model.bias = torch.nn.Parameter(torch.zeros(1))

class Odd:
    def state_dict(self): return {"rate": Odd}
    def load_state_dict(self, state): pass
"""
LOOP = """
with isthmus.island(model, optimizer) as island:
    optimizer.zero_grad(); loss = model(torch.ones(2, 4)).mean(); loss.backward(); optimizer.step()
    island.step({arguments})
"""
TWICE = "a second one inside of the first"
WRONG = {
    "a list": ("isthmus.island([1], optimizer)", "a list"),
    "frozen": ("isthmus.island(model.requires_grad_(False), optimizer)", "all of them frozen"),
    "no leaves": ("isthmus.island(torch.nn.Tanh(), optimizer)", "none"),
    "of others": (
        "isthmus.island(model, torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), lr=0.1))",
        "an optimizer of other parameters than the module's",
    ),
    "no optimizer": ("isthmus.island(model, None)", "a NoneType, which is no torch.optim.Optimizer"),
    "a loss of two": (LOOP.format(arguments="torch.ones(2), tokens=8"), "tensor([1., 1.])"),
    "a text": (LOOP.format(arguments="'low', tokens=8"), "'low'"),
    "a complex loss": (LOOP.format(arguments="loss * 1j, tokens=8"), "tensor("),
    "no tokens": (LOOP.format(arguments="loss, tokens=0"), "0"),
    "half a token": (LOOP.format(arguments="loss, tokens=0.5"), "0.5"),
    "outside": ("isthmus.island(model, optimizer).step(1.0, tokens=8)", "one outside of it"),
    "two devices": (
        "isthmus.island(torch.nn.Sequential(model, torch.nn.Linear(1, 1, device='meta')), optimizer)",
        "cpu, meta",
    ),
    "a new leaf": (
        LOOP.format(arguments="loss, tokens=8").replace("optimizer.zero_grad()", "renew(model)", 1),
        "another tensor",
    ),
    "another thread": (
        LOOP.format(arguments="loss, tokens=8").replace("island.step(", "elsewhere(island.step, "),
        "another one",
    ),
    "kept too late": ("isthmus.island(model, optimizer).keep(optimizer)", "one outside of it"),
    "nothing to keep": (
        LOOP.format(arguments="loss, tokens=8").replace("optimizer.zero_grad()", "island.keep([])", 1),
        "a list, which lacks them",
    ),
    "what cannot be read": (
        LOOP.format(arguments="loss, tokens=8").replace("optimizer.zero_grad()", "island.keep(Odd())", 1),
        "a Odd, of which this cannot be read back: ",
    ),
    "entered twice": (
        LOOP.format(arguments="loss, tokens=8").replace("optimizer.zero_grad()", "island.__enter__()", 1),
        TWICE,
    ),
    "another inside": (
        LOOP.format(arguments="loss, tokens=8").replace(
            "optimizer.zero_grad()", "isthmus.island(model, optimizer).__enter__()", 1
        ),
        TWICE,
    ),
    "many tokens in words": (
        LOOP.format(arguments="loss, tokens=8").replace("optimizer)", "optimizer, tokens_most='9')", 1),
        "'9'",
    ),
    "no function": ("isthmus.island(model, optimizer, evaluate=1)", "a int"),
    "few tokens": (
        LOOP.format(arguments="loss, tokens=8").replace("optimizer)", "optimizer, tokens_most=4)", 1),
        "4",
    ),
}
ENDS = {
    "no island": ("print('done')", "its end, with 'done' as its last line"),
    "an error": ("raise RuntimeError('no data')", "exit status 1, by RuntimeError: no data ("),
    "no step": ("with isthmus.island(model, optimizer) as island: pass", "none"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_script_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(way: Any, faults: Any) -> None:
        raise ConfigError.of(faults)

    text, found = WRONG[name]
    monkeypatch.setenv(ISLAND, '{"asks": 1000}')
    monkeypatch.setattr("isthmus.programs.loop_ways.WaitingLoop.fault", answer)
    with pytest.raises(ConfigError) as caught:
        exec(HEAD + HELPERS + text, {"__name__": "train"})
    (fault,) = caught.value.faults
    assert fault.found.startswith(found)


@pytest.mark.filterwarnings("ignore:os.fork")  # Of jax, which another test of this process may have imported.
@pytest.mark.parametrize("call", ["island.step(1.0, tokens=8)", "island.keep(optimizer)"])
def test_a_process_that_is_forked_in_the_loop_is_no_island(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(way: Any, faults: Any) -> None:
        raise ConfigError.of(faults)

    monkeypatch.setenv(ISLAND, '{"asks": 1000}')
    monkeypatch.setattr("isthmus.programs.loop_ways.WaitingLoop.fault", answer)
    names: dict[str, Any] = {}
    exec(HEAD + "island = isthmus.island(model, optimizer).__enter__()", names)
    child = os.fork()
    if not child:
        try:
            exec(call, names)
        except ConfigError as error:
            names["island"].__exit__(ConfigError, error, None)
            names["island"].__exit__(None, None, None)  # In order; this process has nothing to leave.
            os._exit(7 if "forked" in str(error) else 1)
        finally:
            os._exit(1)
    names["island"].__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_process_that_nothing_has_started_as_an_island_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ISLAND, raising=False)
    with pytest.raises(ConfigError, match="isthmus train --loop"):
        exec(HEAD + LOOP.format(arguments="loss, tokens=8"), {})


@pytest.mark.parametrize("name", ENDS)
def test_a_script_that_makes_no_step_is_refused(name: str, tmp_path: Path) -> None:
    text, found = ENDS[name]
    (tmp_path / "train.py").write_text(HEAD + text)
    with pytest.raises(ConfigError) as caught:
        asked_of(LoopScript(str(tmp_path / "train.py"), (), str(tmp_path)))
    (fault,) = caught.value.faults
    assert fault.found == found or fault.found.startswith(f"{found}{tmp_path / 'train.py'}:")


def test_a_script_tells_of_its_model_and_of_its_step(tmp_path: Path) -> None:
    text = LOOP.format(arguments="loss, tokens=torch.tensor(8)")
    text = text.replace("optimizer)", "optimizer, merge={'**': 'average'})", 1)
    (tmp_path / "train.py").write_text(HEAD + text)
    found = asked_of(LoopScript(str(tmp_path / "train.py"), (), str(tmp_path)))
    assert [(leaf.name, leaf.shape, leaf.kind) for leaf in found.leaves] == [
        ("weight", (1, 4), "average"),
        ("bias", (1,), "average"),
    ]
    assert (found.tokens, found.tokens_most) == (8, 64)
    assert found.learner_bytes == 2 * 4 * 5
