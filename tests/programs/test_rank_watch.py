"""When the ranks of an island hang, by what they have used and where they are; and what faulthandler prints of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.programs import island, rank_processes, rank_watch
from isthmus.programs.rank_watch import BOUND, RankStack, RankWatch, stack_in, told
from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.daemon.stacks import places_in
from isthmus.runtime.system.printed_stacks import PrintedFrame
from isthmus.runtime.system.processes import RANKS_HUNG
from tests.patience import PATIENCE

USERS = PrintedFrame("/home/you/loop.py", 12, "train")
COLLECTIVE = PrintedFrame("/lib/torch/distributed/distributed_c10d.py", 1, "barrier")
OURS = PrintedFrame(rank_watch.__file__, 1, "wait")
BUSY, BARRIER, RUN = RankStack(USERS, ()), RankStack(USERS, (COLLECTIVE, OURS)), RankStack(USERS, (OURS,))
QUEUE = PrintedFrame("/lib/python3/queue.py", 1, "get")
LOADER = RankStack(USERS, (QUEUE, PrintedFrame(island.__file__, 1, "_batches")))
STEP = RankStack(USERS, (QUEUE, PrintedFrame(island.__file__.replace("island", "trainer_callback"), 1, "step")))
BOUND_NS = seconds(20)


class Island:
    """Ranks that are where a test says; `asked` counts the stacks that were looked at."""

    def __init__(self, *stacks: RankStack | None) -> None:
        self.stacks, self.asked, self.now = list(stacks), 0, 0
        self.said: list[str] = []
        self.watch = RankWatch(range(len(stacks)), BOUND_NS, self._stack_of, self.said.append)

    def _stack_of(self, pid: int) -> RankStack | None:
        self.asked += 1
        return self.stacks[pid]

    def hangs(self, *idle: float) -> bool:
        self.now += int(BOUND_NS)
        lasted = {rank: Duration(int(each * 1e9)) for rank, each in enumerate(idle)}
        return self.watch.judged(lasted, Instant(self.now)) is not None


@pytest.mark.parametrize(
    ("stacks", "idle", "hangs"),
    [
        ((BARRIER, BARRIER), (20.0, 20.0), True),
        ((BUSY, BARRIER), (20.0, 20.0), True),  # It waits for something of its own, as in a read that never ends.
        ((BARRIER, None), (20.0, 20.0), True),
        ((BARRIER, BARRIER), (20.0, 19.0), False),
        ((RUN, BARRIER), (600.0, 600.0), False),  # Rank 0 waits for the first model.
        ((None, BARRIER), (600.0, 600.0), False),  # Nobody knows what for.
        ((BUSY, BARRIER), (0.0, 600.0), False),  # Rank 0 evaluates.
        ((LOADER, BARRIER), (20.0, 20.0), True),  # It waits for a batch, through the island's own loop.
        ((STEP, BARRIER), (20.0, 20.0), True),  # For something in a Trainer's step.
    ],
)
def test_ranks_hang_where_all_do_nothing_and_none_waits_for_the_run(
    stacks: tuple[RankStack | None, ...], idle: tuple[float, ...], hangs: bool
) -> None:
    ranks = Island(*stacks)
    assert ranks.hangs(*idle) == hangs
    ranks.hangs(*idle)
    assert len(ranks.said) == (stacks[0] is None)


def test_a_rank_that_waits_busily_in_a_collective_hangs_if_two_looks_see_it_there() -> None:
    island = Island(BARRIER, BUSY)
    assert not island.hangs(0.0, 20.0)
    assert island.hangs(0.0, 40.0)
    island = Island(BARRIER, BUSY)
    assert not island.hangs(0.0, 20.0)
    island.stacks[0] = RankStack(USERS._replace(line=13), (COLLECTIVE,))
    assert not island.hangs(0.0, 40.0)


def test_an_idle_rank_is_asked_only_once_all_are_idle() -> None:
    island = Island(BARRIER, BUSY)  # What it prints would be work.
    assert not island.hangs(20.0, 0.0)
    assert island.asked == 1
    assert island.hangs(20.0, 20.0)


def test_the_ranks_of_a_healthy_island_are_not_asked_where_they_are() -> None:
    island = Island(BUSY, BARRIER)
    assert not island.hangs(0.0, 19.0)
    assert not island.hangs(0.0, 0.0)
    assert island.asked == 0


PRINTED = f"""Thread 0x00007f01 (most recent call first):
  File "{sys.base_prefix}/lib/python3.11/threading.py", line 5 in wait
Current thread 0x00007f02 (most recent call first):
  File "{sys.prefix}/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4000 in barrier
  File "/home/you/loop.py", line 12 in train
  File "/home/you/loop.py", line 40 in <module>
Thread 0x00007f03 (most recent call first):
  File "/home/you/loader.py", line 3 in read
"""


def test_a_stack_is_that_of_the_thread_that_waits_for_others() -> None:
    stack = stack_in(PRINTED)
    assert stack is not None
    assert (stack.place, stack.is_in_collective, stack.is_in_run) == (USERS, True, False)
    alone = PRINTED.replace("torch/distributed/distributed_c10d.py", "torch/autograd/graph.py")  # DDP waits in C++.
    stack = stack_in(alone.replace("/home/you/loader.py", rank_watch.__file__))
    assert stack is not None
    assert (stack.place, stack.is_in_collective, stack.is_in_run) == (USERS, False, False)
    assert stack_in("Thread 0x01 (most recent call first):\n") is None


def test_a_daemon_reads_the_places_of_ranks_in_what_is_told() -> None:
    text = PRINTED + "\n".join(told({0: BARRIER, 1: None, 2: BUSY}, 20.0))
    places = places_in(text)
    assert [(each.file, each.line) for each in places] == [("/home/you/loop.py", 12)] * 2
    assert [each.function.partition(",")[2].split(",")[0] for each in places] == [" rank 0", " rank 2"]


HANGING = """
import os, sys, time
from isthmus.runtime.system.processes import print_stacks_at_signal
from isthmus.runtime.system.printed_stacks import PrintedFrame
print_stacks_at_signal()
time.sleep(3600)
"""


@pytest.mark.process
@pytest.mark.slow
def test_ranks_that_hang_are_told_and_end_together(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(HANGING)
    command = rank_processes.command_of(2, [sys.executable, str(tmp_path / "loop.py")])
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run(
            command, env={**os.environ, BOUND: "1"}, stdout=log, stderr=log, timeout=PATIENCE, check=False
        )
    assert done.returncode == RANKS_HUNG
    places = places_in((tmp_path / "log").read_text())
    assert {each.function for each in places} == {"<module>, rank 0", "<module>, rank 1"}
