"""A syncer of two shards as processes: one dies, hangs, and is lost for good, and the other goes on merging."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import PAUSE, Run

pytestmark = [pytest.mark.process, pytest.mark.soak]

SHARDS = ("--set", "program.shards=2", "--set", "program.fragments=2")


def rounds(run: Run, fragment: int) -> list[dict[str, Any]]:
    """The rounds of one fragment that are written down so far."""
    lines = map(json.loads, (run.folder / "merges.jsonl").read_text().splitlines())
    return [line for line in lines if line["fragment"] == fragment]


def merges(run: Run, fragment: int) -> list[dict[str, Any]]:
    """Those of them that are no first or last rounds, and made a version."""
    return [line for line in rounds(run, fragment) if line["kind"] == "merge" and line["version"]]


def is_final(run: Run, fragment: int) -> bool:
    """Whether its last round is over. It makes a version only if somebody has trained since the round before."""
    return any(line["kind"] == "final" for line in rounds(run, fragment))


def wait_for_merges_of(run: Run, fragment: int, more: int) -> None:
    before = len(merges(run, fragment))
    run.wait_for(lambda: len(merges(run, fragment)) >= before + more)


def test_one_of_two_shards_dies_hangs_and_is_lost(start: Callable[..., Run]) -> None:
    run = start(*SHARDS)
    run.wait_for_merges(20)
    steps = run.steps()
    run.kill("syncer/1")
    wait_for_merges_of(run, 0, 3)
    run.wait_for(lambda: merges(run, 1)[-1]["version"][0] == 2)
    # It went on from the newest version of its first life that learners held.
    counts = {epoch: [m["version"][1] for m in merges(run, 1) if m["version"][0] == epoch] for epoch in (1, 2)}
    assert counts[2][0] >= counts[1][-1]
    # One that hangs: the rounds of the other go on.
    pid = run.kill("syncer/1", signal.SIGSTOP)
    hung = len(merges(run, 1))
    wait_for_merges_of(run, 0, 5)
    assert len(merges(run, 1)) <= hung + 1
    os.kill(pid, signal.SIGCONT)
    wait_for_merges_of(run, 1, 3)
    assert run.host("syncer/1")["pid"] == pid
    assert {merge["version"][0] for merge in merges(run, 0)} == {1}
    assert all(step > steps[name] for name, step in run.steps().items())
    # Now every life of it dies.
    for _ in range(600):
        if run.daemon() and (pid := run.host("syncer/1").get("pid")):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if run.command.poll() is not None:
            break
        PAUSE.wait(0.05)
    out, error = run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == 1, (out, error)
    assert "syncer/1 ended again and again" in error
    assert "Lost with it: fragment 1 (w)." in error
    assert "Traceback" not in out + error
    assert "syncer 1 was killed by signal SIGKILL; learners go on stepping, and its fragments are not merged" in out
    assert "Lost with it: fragment 1 (w)." in (run.folder / "report.html").read_text()
    run.wait_until_gone()


def test_a_shard_that_dies_when_the_other_is_final(start: Callable[..., Run]) -> None:
    run = start(*SHARDS)
    run.wait_for_merges(10)
    pid = run.kill("syncer/1", signal.SIGSTOP)
    run.command.send_signal(signal.SIGINT)
    run.wait_for(lambda: is_final(run, 0))
    os.kill(pid, signal.SIGKILL)
    summary = run.finish()
    assert is_final(run, 1)
    versions = [[line["version"] for line in rounds(run, p) if line["version"]] for p in (0, 1)]
    assert [versions[p][-1][0] for p in (0, 1)] == [1, 2]
    assert summary["syncer_shards"] == 2
    assert summary["tokens_pending"] == 0
    assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]
