"""What `isthmus doctor --link` says of a link of a known rate.

    python -m tests.bench.long.bench_link [--json]

Two daemons with keys in network namespaces, alpha and beta; what each sends is held to a rate by `tc tbf`, another for
each direction. Three ways: beta has an address; beta has joined and has none; only the daemons' own ports are open, so
that a porter relays. Rates are of packets, of which TCP's payload is 1448 of 1514 bytes. Needs root, and tc.
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
RATES: Final = ((20, 50), (200, 100), (2, 5))
"""Megabits a second from alpha, and from beta."""
PAYLOAD: Final = 1448 / 1514
SECONDS_MAX: Final = 60.0
MACHINE: Final = '[keys]\nsecret = "{name}.key"\nadmitted = ["{other}.pub"]\n'
CLUSTER: Final = """
[keys]
secret = "alpha.key"
[[machine]]
name = "alpha"
address = "tcp://{alpha}:7400"
public_key = "alpha.pub"
[[machine]]
name = "beta"
{beta}
public_key = "beta.pub"
"""


class Daemons:
    """Two daemons, in a folder; `way` is one of the three."""

    def __init__(self, net: Any, folder: Path, way: str) -> None:
        self.net, self.folder, self.running = net, folder, list[subprocess.Popen[str]]()
        for name, other in (("alpha", "beta"), ("beta", "alpha")):
            if not (folder / f"{name}.key").exists():
                subprocess.run([ISTHMUS, "keygen", name], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            (folder / f"{name}.toml").write_text(MACHINE.format(name=name, other=other))
        at = {name: f"tcp://{net.addresses[name]}:7400" for name in ("alpha", "beta")}
        beta = "" if way == "joined" else f'address = "{at["beta"]}"'
        (folder / "cluster.toml").write_text(CLUSTER.format(alpha=net.addresses["alpha"], beta=beta))
        ports = ["--ports", "7400-7400"] if way == "one port" else []
        self._begin("alpha", "daemon", "--name", "alpha", "--listen", at["alpha"], "--config", "alpha.toml", *ports)
        if way == "joined":
            self._begin(
                "beta", "join", at["alpha"], "--name", "beta", "--config", "beta.toml", "--server-key", "alpha.pub"
            )
        else:
            self._begin("beta", "daemon", "--name", "beta", "--listen", at["beta"], "--config", "beta.toml", *ports)

    def _begin(self, machine: str, *words: str) -> None:
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / f"state-{machine}")}
        command = [*self.net.prefix(machine), str(ISTHMUS), *words]
        with (self.folder / f"{machine}.log").open("w") as log:
            self.running.append(
                subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log, text=True)
            )

    def link(self) -> dict[str, Any]:
        """What the command says, once both are there."""
        command = [
            *self.net.prefix("alpha"),
            str(ISTHMUS),
            "doctor",
            "--link",
            "alpha",
            "beta",
            "--cluster",
            "cluster.toml",
        ]
        until = time.monotonic() + SECONDS_MAX
        while True:
            done = subprocess.run([*command, "--json"], cwd=self.folder, capture_output=True, text=True, check=False)
            if not done.returncode:
                return dict(json.loads(done.stdout)["pairs"][0])
            if time.monotonic() > until:
                raise SystemExit(done.stderr)
            time.sleep(1.0)

    def close(self) -> None:
        """End them."""
        for each in self.running:
            each.kill()
            each.wait()


def main() -> None:
    """Measure, and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    from tests.programs.engine.machine.namespaces import Namespaces, why_not

    if reason := why_not():
        raise SystemExit(reason)
    net, cases = Namespaces("alpha", "beta", subnet="10.180.0"), []
    try:
        for number, way in enumerate(("address", "joined", "one port")):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
                daemons = Daemons(net, Path(place), way)
                try:
                    for rates in RATES if not number else RATES[:1]:
                        for machine, rate in zip(("alpha", "beta"), rates, strict=True):
                            limits = ("rate", f"{rate}mbit", "burst", "32kbit", "latency", "50ms")
                            change = ("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *limits)
                            subprocess.run([*net.prefix(machine), *change], check=True)
                        cases.append({"way": way, "rates": rates, **daemons.link()})
                finally:
                    daemons.close()
    finally:
        net.close()
    for case in cases:
        for way, rate in zip(case["directions"], case["rates"], strict=True):
            way["share"] = (way["bytes_per_second"] or 0.0) * 8 / (rate * 1e6 * PAYLOAD)
    if wanted.json:
        print(json.dumps(cases, indent=2))
        return
    for case in cases:
        for way, rate in zip(case["directions"], case["rates"], strict=True):
            loss = "not measured" if way["loss"] is None else f"{100 * way['loss']:.2f} %"
            print(
                f"{case['way']:10} {way['source']:5} -> {way['target']:5} {rate:4} Mbit/s: measured / set "
                f"{way['share']:.2f}, round trip {1e3 * way['round_trip_seconds']:.1f} ms, loss {loss}"
                f"{', relayed' if case['is_relayed'] else ''}"
            )


if __name__ == "__main__":
    main()
