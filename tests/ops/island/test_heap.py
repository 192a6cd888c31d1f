"""What malloc keeps of free memory, in a process of its own: it cannot be taken back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from isthmus.ops.island.heap import MODEL_BYTES_MIN

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from isthmus.ops.island.heap import give_back, keep_no_large_blocks

def own_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

keep_no_large_blocks(int(sys.argv[1]))
np.empty(31 << 20, np.uint8)[:] = 1  # Freed, it lets malloc keep blocks of up to 31 MiB from now on, if it may.
blocks = [np.ones(8 << 20, np.uint8) for _ in range(8)]
above = np.ones(1 << 20, np.uint8)  # What is below it stays in the heap when it is free.
before = own_bytes()
del blocks
print(before - own_bytes() >> 20)
give_back()
print(before - own_bytes() >> 20)
"""


@pytest.mark.process
@pytest.mark.parametrize(("model_bytes", "gives"), [(MODEL_BYTES_MIN - 1, False), (MODEL_BYTES_MIN, True)])
def test_blocks_of_a_large_models_host_go_back_at_once(model_bytes: int, gives: bool) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(model_bytes)], capture_output=True, text=True, check=True)
    at_once, when_asked = map(int, done.stdout.split())
    assert (at_once > 56) == gives
    assert when_asked > 56
