"""Files that somebody deletes under a run: its ledger and its socket are made anew, and without its folder it ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.runtime.daemon.ledger import FILE
from isthmus.runtime.supervision.incidents import LedgerRemoved
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import Run

pytestmark = [pytest.mark.process, pytest.mark.soak]


def test_a_ledger_that_is_deleted_is_written_anew_and_a_folder_that_is_deleted_ends_the_run(
    start: Callable[..., Run],
) -> None:
    run = start(learners=1)
    run.wait_for_merges(1)
    for path in run.folder.glob(f"{FILE}*"):
        path.unlink()
    run.wait_for(lambda: LedgerRemoved() in run.incidents("daemon/0#1"))
    assert (run.folder / FILE).exists()
    shutil.rmtree(Path(run.daemon()["endpoint"].removeprefix("ipc://")).parent)
    run.wait_for(lambda: run.status()["outcome"] == "running")
    run.wait_for_merges(1)
    shutil.rmtree(run.folder, ignore_errors=True)
    out, err = run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == 1
    assert f"the run folder {run.folder} was deleted" in err, (out, err)
    assert "Traceback" not in err
