"""What starts at once, or stays small, loads no jax: the packages, help, status, and the bodies of a syncer's host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.process

COMMAND = """
import contextlib, io
from isthmus.programs.command.main import whole
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    whole()({arguments!r}, prog_name="isthmus", standalone_mode=False)
"""
LOADED = """
import sys
print(sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "jaxlib", "numba", "optax"}))
"""


@pytest.mark.parametrize(
    "code",
    [
        "import isthmus.testing, isthmus\n[getattr(isthmus, name) for name in isthmus.__all__]",
        COMMAND.format(arguments=["--help"]),
        COMMAND.format(arguments=["train", "--help"]),
        COMMAND.format(arguments=["status", "--all"]),
        "import isthmus.ops.data.batches_node, isthmus.ops.island.evaluate, isthmus.ops.learner.inner_step, "
        "isthmus.ops.learner.fragment_send, isthmus.ops.syncer.merge, isthmus.ops.syncer.outer_step, "
        "isthmus.ops.syncer.pacer",
        "import isthmus.programs.decoupled, isthmus.programs.streaming_diloco, "
        "isthmus.programs.wings.data_parallel.elastic_data_parallel",
    ],
    ids=["face", "help", "help of train", "status", "bodies", "programs"],
)
def test_this_loads_no_jax(code: str, tmp_path: Path) -> None:
    done = ended(code + LOADED, tmp_path)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_status_of_a_run_is_shown_without_numpy(tmp_path: Path) -> None:
    code = "import sys, isthmus.programs.study.terminal.status; print('numpy' in sys.modules)"
    done = ended(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def ended(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a process that runs this has done."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder)},  # Of no daemon that lives.
    )
