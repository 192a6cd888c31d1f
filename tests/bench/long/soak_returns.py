"""One island that is preempted again and again: does it return to its slot, and what is lost?

    python -m tests.bench.long.soak_returns [--times 40] [--slots-max 4] [--json]

A home with one learner, and a machine that joins with one island (`isthmus join`), on loopback, both with the linear
task of `kills/distance.py`. As soon as something of the joined learner is merged in its present life, and some seconds
more, it gets SIGTERM, leaves, and is started again under the same name. Of the books: the slots that its lives had, and
the tokens of its lives that were lost over those that they trained. Exit status 1 unless each life was merged, all had
one slot, and the books have no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.bench.observed import ISTHMUS

TASK = Path(__file__).parents[1] / "kills" / "distance.py"
STAY_SECONDS = 2.0
PATIENCE_SECONDS = 120.0
PAUSE = threading.Event()


def voters(folder: Path) -> list[list[int]]:
    """The slots of each merge."""
    path = folder / "merges.jsonl"
    return [json.loads(line)["voters"] for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(what: Any) -> float:
    """Seconds until something holds."""
    begun = time.monotonic()
    while not what():
        if time.monotonic() > begun + PATIENCE_SECONDS:
            raise TimeoutError("it did not come about")
        PAUSE.wait(0.1)
    return time.monotonic() - begun


def preempted(place: Path, times: int, slots_max: int) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    (place / "cluster.toml").write_text(
        f'[[machine]]\nname = "alpha"\naddress = "{address}"\nislands = 1\n'
        f'[run]\ntask = "{TASK}:task"\nlearners = 1\ntokens = 1000000000\nslots_max = {slots_max}\n'
    )
    (place / "machine.toml").write_text(f'[programs]\nmodules = ["{TASK}"]\n')
    environment, folder = {**os.environ, "XDG_STATE_HOME": str(place / "state")}, place / "run"

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        with (place / "output.txt").open("ab") as out:
            command = [str(ISTHMUS), *arguments, "--config", "machine.toml"]
            return subprocess.Popen(command, cwd=place, env=environment, stdout=out, stderr=out, start_new_session=True)

    home = begin("daemon", "--name", "alpha", "--listen", address, "--run", "cluster.toml", "--run-dir", "run")
    wait_for(lambda: voters(folder))
    merged, left = [], []
    for number in range(times):
        before, joined = len(voters(folder)), begin("join", address, "--name", "beta")
        merged.append(wait_for(lambda before=before: any(slot for each in voters(folder)[before:] for slot in each)))
        PAUSE.wait(STAY_SECONDS)
        begun = time.monotonic()
        joined.send_signal(signal.SIGTERM)
        status = joined.wait(PATIENCE_SECONDS)
        left.append(time.monotonic() - begun)
        print(json.dumps({"time": number, "merged_s": merged[-1], "left_s": left[-1], "status": status}), flush=True)
    home.send_signal(signal.SIGINT)
    home.wait(PATIENCE_SECONDS)
    summary = json.loads((folder / "summary.json").read_text())
    lives = [life for life in summary["books"]["lives"] if life["learner"] > 0]
    trained = sum(life["tokens_known"] for life in lives)
    return {
        "times": len(merged),
        "slots": sorted({life["learner"] for life in lives}),
        "lives": len(lives),
        "seconds_to_merge": statistics.median(merged),
        "seconds_to_leave": [min(left), statistics.median(left), max(left)],
        "tokens_of_its_lives": trained,
        "lost_share": summary["tokens_lost"] / trained if trained else None,
        "differences": [account["difference"] for account in summary["fragment_accounts"]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--slots-max", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="isthmus-returns-"))
    figures = preempted(place, options.times, options.slots_max)
    print(json.dumps(figures, indent=None if options.json else 2))
    is_good = len(figures["slots"]) == 1 and not any(figures["differences"]) and figures["times"] == options.times
    if is_good:
        shutil.rmtree(place)
    else:
        print(f"kept: {place}")
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
