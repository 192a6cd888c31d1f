"""What becomes of output that nothing takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
from isthmus.programs.engine.run.interrupts import drop_untaken_output
print("x")
drop_untaken_output()
print("y")
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_what_a_full_disk_does_not_take_ends_no_process_by_an_error_of_its_own() -> None:
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    words = [sys.executable, "-c", CODE]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=buffered)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.stdout == "x\ny\n"
