"""A run whose daemon dies while its disk is full.

    python -m tests.programs.engine.run.daemonless_run FOLDER mended|abandoned

FOLDER is a small file system.

Prints what came of it as JSON. There is room again once more daemons could not be started than are forgiven, and the
run is stopped; or its hosts die as well.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.programs.engine.run.full_disk_run import _fill
from tests.programs.engine.run.process_run import Run

TRIED_SECONDS = 12.0
"""At 0, 0.5, 1.5, 3.5 and 7.5 s, and then every 8."""


def main(folder: Path, how: str) -> dict[str, Any]:
    """What was seen."""
    run, filler = Run(folder), folder / "filler"
    try:
        run.wait_for(lambda: run.merges() >= 10)
        _fill(filler)
        hosts = run.pids()
        daemon = hosts.pop("daemon")
        os.kill(daemon, signal.SIGKILL)
        killed_at = time.monotonic()
        if how == "mended":
            run.wait_for(lambda: time.monotonic() > killed_at + TRIED_SECONDS)
            filler.unlink()
            run.wait_for(lambda: run.daemon()["pid"] != daemon and run.status()["outcome"] == "running")
            run.command.send_signal(signal.SIGINT)
        else:
            for host in hosts.values():
                os.kill(host, signal.SIGKILL)
        _, error = run.command.communicate(timeout=PATIENCE)
        run.wait_until_gone()
        seen = {"error": error, "status": run.command.returncode}
        if how == "mended":
            summary = run.summary()
            restarts = [learner["restarts"] for learner in summary["per_learner"]]
            seen |= {"outcome": summary["outcome"], "restarts": restarts}
        return seen
    finally:
        run.close()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
