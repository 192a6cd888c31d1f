"""The weight of a process's session, where the kernel has such a thing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.runtime.system.processes import NICENESS

TRIED = """
from pathlib import Path
from isthmus.runtime.system import processes as own_group
group = Path("/proc/self/autogroup")
def niceness(): return int(group.read_text().rpartition(" ")[2])
first = niceness()
own_group.lower_priority()
second = niceness()
group.write_text("7")
own_group.lower_priority()
print(first, second, niceness())
own_group.lower_priority(13)
own_group.lower_priority(9)
print(niceness())
own_group._GROUP = Path("/proc/self/nothing")
own_group.lower_priority()
"""
THREADS = """
import os, threading
from isthmus.runtime.system import processes
ended, thread_niceness = threading.Event(), []
def level(thread): return os.getpriority(os.PRIO_PROCESS, thread)
def work(niceness):
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
    ready.wait()
    ended.wait()
ready = threading.Barrier(3)
threads = [threading.Thread(target=work, args=(niceness,)) for niceness in (5, 15)]
for each in threads: each.start()
ready.wait()
processes.lower_other_threads(13)
print(level(0), *(level(each.native_id) for each in threads))
ended.set()
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel groups no processes by session")
def test_a_session_gives_way_and_one_that_does_so_more_is_left_alone() -> None:
    command = [sys.executable, "-c", TRIED]
    told = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    assert told.stdout.split() == ["0", str(NICENESS), "7", "13"]


@pytest.mark.process
def test_other_threads_give_way_and_those_that_do_so_more_are_left_alone() -> None:
    told = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert told.stdout.split() == [str(own), str(max(13, own)), "15"]
