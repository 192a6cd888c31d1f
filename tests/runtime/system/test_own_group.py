"""The weight of a process's session, where the kernel has such a thing."""

from __future__ import annotations

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
own_group._GROUP = Path("/proc/self/nothing")
own_group.lower_priority()
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel groups no processes by session")
def test_a_session_gives_way_and_one_that_does_so_more_is_left_alone() -> None:
    command = [sys.executable, "-c", TRIED]
    told = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    assert told.stdout.split() == ["0", str(NICENESS), "7"]
