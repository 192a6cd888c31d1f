"""A refusal ends its process: nothing that was begun for the request keeps it once the message is there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-c", "from isthmus.programs.command.main import main; main()")
STEPLESS = """
import os, threading, time
if os.fork() == 0:
    time.sleep(600)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
raise ValueError("no data")
"""
"""What it has started outlives it, unless it is ended with it."""
REFUSED = {
    "a wrong setting": ("train", "--set", "program.overlap=99"),
    "no data": ("train", "--data", "nothing.txt"),
    "a script without a step": ("train", "--loop", "stepless.py", "--learners", "2"),
    "no cluster": ("train", "--cluster", "cluster.toml"),
    "no run": ("train", "--resume", "nothing"),
}


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_a_refusal_ends_the_process_within_a_second_of_its_message(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "stepless.py").write_text(STEPLESS)
    begun = time.monotonic()
    process = subprocess.Popen([*COMMAND, *words], cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    at = begun
    with process, process.stderr:
        while os.read(process.stderr.fileno(), 1 << 16):
            at = time.monotonic()
        # At the end of the output nothing is left that has it: no script, and nothing that a script has started.
        assert process.wait() == 2
    lasted = time.monotonic() - at
    # On a busy machine all is slow, the way to the message, too.
    assert lasted < max(1.0, (at - begun) / 2)
