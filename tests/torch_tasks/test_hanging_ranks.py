"""Ranks that hang, in a real run: in an operation that never returns, and while one of them works for long."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.runtime.supervision.incidents import Ended, Exited
from isthmus.runtime.system.processes import RANKS_HUNG
from tests.programs.engine.run.process_run import FOREVER, Run
from tests.torch_tasks.test_own_loops import said

pytestmark = [pytest.mark.torch, pytest.mark.process]

BOUND = 6
SCRIPT = f"""
import time
import torch, torch.distributed as dist
import isthmus

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
with isthmus.island(model, optimizer) as island:
    print(f"rank {{rank}} begins at {{island.position}}\\n", end="", flush=True)
    is_first = island.position == 0
    for x in island(iter(lambda: torch.randn(16, 32), None)):
        time.sleep(0.01)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        island.step(loss, tokens=16)
        if is_first and island.position == 40:
            if island.slot == 1:
                time.sleep(36000 * rank)
                dist.barrier()  # It never returns.
            if island.slot == 0:
                until = time.monotonic() + 3 * {BOUND}
                while rank == 0 and time.monotonic() < until:
                    sum(range(10000))
                dist.barrier()
                print(f"rank {{rank}} has evaluated\\n", end="", flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--loop", "train.py", "--ranks", "2", "--set", f"run.rank_seconds={BOUND}")
    found = Run(tmp_path, *options, learners=2, tokens=FOREVER)
    yield found
    found.close()


def test_ranks_that_hang_end_their_island_and_ranks_of_which_one_works_do_not(run: Run) -> None:
    run.wait_for(lambda: all((run.folder / "logs" / f"learner-{slot}.log").exists() for slot in (0, 1)))
    run.wait_for(lambda: said(run, 0).count("has evaluated") == 2)
    run.wait_for(lambda: said(run, 1).count("begins at") == 4)
    (ended,) = [each for each in run.incidents("learner/1#1") if isinstance(each, Ended)]
    assert isinstance(ended.end, Exited)
    assert ended.end.status == RANKS_HUNG
    told = sorted(each.function for each in ended.end.places)
    assert [text.partition("rank ")[2].split(",")[0] for text in told] == ["0", "1"]
    assert "waits in a collective operation" in told[0]
    assert said(run, 0).count("begins at") == 2
    assert not [each for each in run.incidents("learner/0#1") if isinstance(each, Ended)]
    run.command.send_signal(signal.SIGINT)
    run.command.communicate()
