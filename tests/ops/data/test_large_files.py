"""Token files that are larger than the memory there is: they are mapped, and windows alone are read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

SIZE_BYTES = 6 << 30
MEMORY_BYTES_MAX = 400 << 20
PROGRAM = """
import sys
from isthmus.ops.data.batches import At, Windows
from isthmus.ops.data.corpus import load
from isthmus.programs.reading.found import find

def resident(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))

before = resident("VmHWM")
windows = Windows(load(find([sys.argv[1]]).files, vocabulary=50_000, token_dtype=sys.argv[2]), 8, 1025)
for position in range(200):
    assert windows.batch(At(0, 0, position))["tokens"].shape == (8, 1025)
print(len(windows.corpus.train) + len(windows.corpus.evaluation), resident("VmHWM") - before)
"""


@pytest.mark.process
@pytest.mark.soak
def test_a_file_of_some_gibibytes_is_trained_on_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    with path.open(
        "wb"
    ) as file:  # Sparse: it reads as zeros, which no file begins with, and takes no room on the disk.
        file.write(b"\1\0" * (1 << 20))
        file.truncate(SIZE_BYTES)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), "uint16"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    tokens, grown = map(int, done.stdout.split())
    assert tokens == SIZE_BYTES // 2
    assert grown < MEMORY_BYTES_MAX
