"""What the death of a process costs an elastic island, and its return: seconds without a step, tokens, and the others.

    python -m tests.bench.long.bench_elastic [--processes 4] [--batch 12] [--width 96] [--rounds 1] [--json]

A real run of two learners, of which the first is an island of so many processes. `kill -9` of the last of these, and of
the fork server, so that its next life takes some seconds to come; once the island trains whole again, of its leader. A
run before it, without deaths, fills the cache of compiled programs with `--warm`; without it the first death pays for
compiling what the smaller mesh computes. Stalls are from the kill, as a person sees them, until the leader says that it
trains again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

BAR_SECONDS = 10.0
START_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.02
INTERVAL = 24
LEADER = "learner/0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1, help="deaths of one that follows, one after the other")
    parser.add_argument("--warm", action="store_true", help="do it all once before")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for _ in range(asked.warm):
        measured(asked)
    load = os.getloadavg()[0]
    found = {**measured(asked), "load_average": load}
    if asked.json:
        print(json.dumps(found))
        return
    for row in found["deaths"]:
        print(f"{row['what']:<42} {row['seconds']:6.2f} s  {'' if row['again'] is None else row['again']}")
    lost = found["tokens_lost"], found["tokens_interval"]
    print(f"tokens lost {lost[0]:.0f} of {lost[1]} in an interval; lives of the other learner {found['lives_other']};")
    print(f"it waited {found['stall_seconds_other']:.3f} s in {found['seconds']:.0f} s; load average {load:.1f}")
    print(f"the bar: each within {BAR_SECONDS:.0f} s, one interval, and no wait")


def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run."""
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there) / "run"
        settings = [f"run.processes=[{asked.processes}]", "run.devices_min=1", f"program.interval={INTERVAL}"]
        settings += [f"task.batch={asked.batch}", f"task.width={asked.width}"]
        given = [part for each in settings for part in ("--set", each)]
        command = [str(Path(sys.executable).with_name("isthmus")), "train", "--learners", "2", "--tokens", "1000000000"]
        begun = time.monotonic()
        run = subprocess.Popen([*command, *given, "--run-dir", str(folder)], stdout=subprocess.DEVNULL)
        try:
            wait(run, lambda: step_of(folder) >= 5)
            deaths = [row for _ in range(asked.rounds) for row in follower_dies(run, folder, asked.processes)]
            deaths.append(leader_dies(run, folder))
        finally:
            run.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                run.wait(60)
            run.kill()
            run.wait()
        summary = json.loads((folder / "summary.json").read_text())
        assert {line["kind"] for line in lines(folder)} >= {"process-lost", "process-back", "reformed"}
        other = summary["per_learner"][1]
        return {
            "deaths": deaths,
            "tokens_lost": summary["tokens_lost"],
            "tokens_interval": INTERVAL * asked.batch * 64,
            "stall_seconds_other": other["stall_seconds"],
            "lives_other": 1 + other["restarts"],
            "seconds": time.monotonic() - begun,
        }


def follower_dies(run: subprocess.Popen[bytes], folder: Path, processes: int) -> list[dict[str, Any]]:
    """The last process of the island, and the fork server, so that it is gone for as long as imports take."""
    name = f"learner.{processes - 1}/0"
    known = len(lines(folder))
    fork_server = [pid for pid in children(daemon_pid(folder)) if title(pid) == "isthmus fork-server"]
    killed = time.monotonic_ns()
    for pid in [*fork_server, host(folder, name)["pid"]]:
        os.kill(pid, signal.SIGKILL)

    def formed(count: int) -> list[dict[str, Any]]:
        found = lines(folder)[known:]
        return [line for line in found if line["kind"] == "reformed" and line["processes"] == count]

    wait(run, lambda: formed(processes))
    without, whole = formed(processes - 1), formed(processes)[-1]
    rows = []
    if without:
        what = f"{name} dies: {processes - 1} of {processes} train"
        rows.append({"what": what, "seconds": (without[0]["at"] - killed) / 1e9, "again": again(without[0])})
        rows.append({"what": f"{name} is back", "seconds": whole["stall_ns"] / 1e9, "again": again(whole)})
    else:
        what = f"{name} dies, and is back at once"
        rows.append({"what": what, "seconds": (whole["at"] - killed) / 1e9, "again": again(whole)})
    return rows


def leader_dies(run: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    """The leader, until its next life steps."""
    killed = time.monotonic()
    os.kill(host(folder, LEADER)["pid"], signal.SIGKILL)
    wait(run, lambda: host(folder, LEADER).get("incarnation", 1) > 1 and step_of(folder) >= 1)
    return {"what": f"{LEADER} dies, and its next life steps", "seconds": time.monotonic() - killed, "again": None}


def again(line: dict[str, Any]) -> str:
    return f"{line['again']} steps made again, stall {line['stall_ns'] / 1e9:.2f} s"


def wait(run: subprocess.Popen[bytes], what: Any) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while not what():
        if run.poll() is not None or time.monotonic() > until:
            raise SystemExit("the run did not come to it")
        time.sleep(LOOK_SECONDS)


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def daemon_pid(folder: Path) -> int:
    pid: int = json.loads((folder / "daemon.json").read_text())["pid"]
    return pid


def host(folder: Path, name: str) -> dict[str, Any]:
    """What the daemon says of a host; nothing before it does."""
    from isthmus.runtime.wire.control_client import ask

    try:
        endpoint = json.loads((folder / "daemon.json").read_text())["endpoint"]
    except (OSError, ValueError):
        return {}
    answer = ask(endpoint, {"type": "status"}, 2.0) or {"hosts": []}
    return next((each for each in answer["hosts"] if each["name"] == name), {})


def step_of(folder: Path) -> int:
    return int(host(folder, LEADER).get("published", {}).get("inner-step", {}).get("step", 0))


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


if __name__ == "__main__":
    main()
