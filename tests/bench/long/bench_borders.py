"""`isthmus borders`, against what TCP has carried.

    python -m tests.bench.long.bench_borders [--tokens N] [--json]

Two machines in network namespaces, with keys, and a run on both: learners on alpha and beta, the rest on alpha. All
connections between them are read from the kernel (tcpi_bytes_acked and tcpi_bytes_received of alpha's ends) ten times a
second until the run is over, and compared with the pairs of `isthmus borders`. Needs root.

And the cost of counting: what one item of 100 bytes adds, in nanoseconds, on a core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ISTHMUS: Final = Path(sys.executable).with_name("isthmus")
PORT: Final = 7400
SECONDS_MAX: Final = 900.0
POLL_SECONDS: Final = 0.1
CLUSTER: Final = """
[keys]
secret = "alpha.key"
[[machine]]
name = "alpha"
address = "tcp://{address}:7400"
public_key = "alpha.pub"
islands = 1
[[machine]]
name = "beta"
public_key = "beta.pub"
roles = ["learner"]
islands = 1
"""
MACHINE: Final = '[keys]\nsecret = "{name}.key"\nadmitted = ["{other}.pub"]\noperators = ["{other}.pub"]\n'


def watch(other: str, over: Path) -> None:
    """Print the payload bytes that crossed between here and an address until a file is there: (sent, received)."""
    from isthmus.programs.wings.doctor.tcp_info import connections

    known: dict[int, tuple[int, int]] = {}
    while True:
        is_over = over.exists()
        for each in connections():
            if each.remote[0].removeprefix("::ffff:") == other:
                known[each.number] = each.acked_bytes, each.received_bytes
        if is_over:
            break
        time.sleep(POLL_SECONDS)
    print(json.dumps([sum(sent for sent, _ in known.values()), sum(got for _, got in known.values())]))


def measured(tokens: int) -> dict[str, Any]:
    """The bytes of one run, by both counts."""
    from tests.programs.engine.machine.namespaces import Namespaces, why_not

    if reason := why_not():
        raise SystemExit(reason)
    net, running = Namespaces("alpha", "beta", subnet="10.179.0"), list[subprocess.Popen[str]]()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            return _measured(net, Path(place), tokens, running)
    finally:
        for each in running:
            each.kill()
            each.wait()
        net.close()


def _measured(net: Any, folder: Path, tokens: int, running: list[subprocess.Popen[str]]) -> dict[str, Any]:
    def begin(machine: str, *words: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "XDG_STATE_HOME": str(folder / f"state-{machine}")}
        command = [*net.prefix(machine), *map(str, words)]
        made = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        running.append(made)
        return made

    for name in ("alpha", "beta"):
        subprocess.run([ISTHMUS, "keygen", name], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    address = net.addresses["alpha"]
    (folder / "cluster.toml").write_text(CLUSTER.format(address=address))
    for name, other in (("alpha", "beta"), ("beta", "alpha")):
        (folder / f"{name}.toml").write_text(MACHINE.format(name=name, other=other))
    begin(
        "alpha", ISTHMUS, "daemon", "--name", "alpha", "--listen", f"tcp://{address}:{PORT}", "--config", "alpha.toml"
    )
    watching = begin("alpha", sys.executable, __file__, "--watch", net.addresses["beta"], folder / "run" / "over.json")
    begin(
        "beta",
        ISTHMUS,
        "join",
        f"tcp://{address}:{PORT}",
        "--name",
        "beta",
        "--config",
        "beta.toml",
        "--server-key",
        "alpha.pub",
    )
    _until(lambda: _train(net, folder, tokens), "the daemon did not take the run")
    _until((folder / "run" / "over.json").exists, "the run did not end")
    sent, received = json.loads(watching.communicate(timeout=SECONDS_MAX)[0])
    told = subprocess.run([ISTHMUS, "borders", "run", "--json"], cwd=folder, check=True, capture_output=True, text=True)
    borders = json.loads(told.stdout)
    ways = {(each["source"], each["target"]): each["bytes"] for each in borders["pairs"]}
    ratios = {"alpha -> beta": ways["alpha", "beta"] / sent, "beta -> alpha": ways["beta", "alpha"] / received}
    kinds = {
        f"{each['source']} -> {each['target']}": {
            kind: sum(part["bytes"] for part in each["kinds"] if part["kind"] == kind)
            for kind in dict.fromkeys(part["kind"] for part in each["kinds"])
        }
        for each in borders["pairs"]
    }
    return {"tcp_bytes": [sent, received], "borders_bytes": list(ways.values()), "ratios": ratios, "kinds": kinds}


def _train(net: Any, folder: Path, tokens: int) -> bool:
    command = [*net.prefix("alpha"), str(ISTHMUS), "train", "--cluster", "cluster.toml", "--tokens", str(tokens)]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state-alpha")}
    done = subprocess.run(
        [*command, "--run-dir", "run", "--detach"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    return done.returncode == 0


def _until(holds: Any, fault: str) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(fault)
        time.sleep(1.0)


def cost() -> dict[str, float]:
    """Nanoseconds that counting takes, for an item and for a message."""
    from isthmus.runtime.channels.crossings import OneWay
    from isthmus.runtime.clock import Instant
    from isthmus.runtime.wire.zmtp_sizes import message_bytes

    way, frames, count = OneWay(), [b"x" * 100], 200_000
    begun = time.perf_counter_ns()
    for number in range(count):
        way.item(3, 100, Instant(number))
    item = (time.perf_counter_ns() - begun) / count
    begun = time.perf_counter_ns()
    for number in range(count):
        way.control.add(message_bytes(frames, is_encrypted=True), Instant(number))
    return {"item_ns": item, "message_ns": (time.perf_counter_ns() - begun) / count}


def main() -> None:
    """Measure, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=255_000)
    parser.add_argument("--watch", nargs=2, metavar=("ADDRESS", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    if wanted.watch:
        watch(wanted.watch[0], Path(wanted.watch[1]))
        return
    figures = {**measured(wanted.tokens), "cost": cost()}
    if wanted.json:
        print(json.dumps(figures, indent=2))
        return
    for way, ratio in figures["ratios"].items():
        print(f"{way}: borders / TCP payload {ratio:.4f}")
        for kind, size in figures["kinds"][way].items():
            print(f"    {kind:20} {size:12,} bytes")
    print(f"TCP payload: {figures['tcp_bytes'][0]:,} and {figures['tcp_bytes'][1]:,} bytes")
    print(f"counting: {figures['cost']['item_ns']:.0f} ns an item, {figures['cost']['message_ns']:.0f} ns a message")


if __name__ == "__main__":
    main()
