"""Whether an island trains alike on any mesh: losses, where the state lies, and what is compiled and donated.

    python -m tests.bench.long.bench_islands [--json]

A model of 50,000 parameters with AdamW, the same batches, on 1, 2, 4 and 8 CPU devices of one process, and on two
processes with two devices each, which talk by gloo: 20 steps, and 50 exchanges of a fragment with a step after each (6
of the two processes). These are the figures that `tests/ops/island/test_meshes.py` and `tests/ops/gang` test.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
GANG = "tests.ops.gang.gang_figures"
BARS = {"losses": 2e-6, "share": 1.1, "replicated": 0.02}


def started(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, env=environment, stdout=-1, text=True)


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The last line of a process, which is JSON."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = told(started("tests.ops.island.mesh_figures"))
    leader = started(GANG, "0")
    assert leader.stdout is not None
    follower = started(GANG, "1", leader.stdout.readline())
    gang = told(leader)
    follower.communicate()
    rows = [("1", 1, found["1"]), *((each, int(each), found[each]) for each in ("2", "4", "8")), ("2 x 2", 4, gang)]
    result = {name: row(devices, of, found["1"]["losses"]) for name, devices, of in rows}
    if asked.json:
        print(json.dumps(result))
        return
    print(f"{'devices':<8}{'losses differ':>15}{'bytes x D / state':>19}{'replicated':>12}{'executables':>13}", end="")
    print(f"{'kept':>6}{'donated':>9}")
    for name, each in result.items():
        print(f"{name:<8}{each['losses']:>15.2e}{each['share']:>19.3f}{each['replicated']:>12.2%}", end="")
        print(f"{each['executables']:>13}{each['kept']:>6.0%}{each['donated']:>9.0%}")
    print(f"the bars: {BARS['losses']}; {BARS['share']} and what is replicated; {BARS['replicated']:.0%}; 1; all; all")


def row(devices: int, of: dict[str, Any], losses: list[float]) -> dict[str, Any]:
    """The figures of one mesh, beside the losses of one device; shares are of each device."""
    replicated = of["replicated_bytes"] / of["state_bytes"]
    return {
        "losses": max(abs(one / other - 1) for one, other in zip(of["losses"], losses, strict=True)),
        "share": (of["device_bytes"] - (of["replicated_bytes"] if devices > 1 else 0)) * devices / of["state_bytes"],
        "replicated": replicated if devices > 1 else 0.0,
        "executables": of["executables"],
        "kept": sum(of["kept"]) / len(of["kept"]),
        "donated": of["donated"],
    }


if __name__ == "__main__":
    main()
