"""The figures that matter, each with its limit from the same run, beside those that were kept: `make bench`.

    python -m tests.bench.ratios [--only NAME ...] [--keep | --beside FOLDER] [--json]

Every figure is a share of its limit: what the event loop, a socket, memory or the bare loop does in the same run is 1,
and more is better. `kept.json` has the shares of an earlier commit, for each kind of processor on which some were kept:
a share that is smaller than there by more than a tenth is marked, and the exit status is 1. On another kind nothing is
compared, because shares differ from kind to kind. --keep writes what was measured there, of all benches at once;
--beside measures another tree, bench by bench in turn with this one, and compares with that. It took 4:54 on two idle
cores; where other work keeps the machine busy, the first line says so, and nothing is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.place import kind_of

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
KEPT: Final = HERE / "kept.json"
WORSE: Final = 0.9
"""Of the kept share."""
LOAD_MAX: Final = 0.5
"""Processes that wait for a core, at the beginning, of a machine that is idle."""


@dataclass(frozen=True)
class Share:
    """A figure beside its limit, in the same unit; `share`, of 1, is how near it is."""

    name: str
    value: float
    limit: float
    unit: str
    share: float


def faster(name: str, value: float, limit: float, unit: str) -> Share:
    """Of a rate: more is better."""
    return Share(name, value, limit, unit, value / limit)


def shorter(name: str, value: float, limit: float, unit: str) -> Share:
    """Of a time, or a size: less is better."""
    return Share(name, value, limit, unit, limit / value)


def scheduler(told: Any) -> Iterator[Share]:
    """A firing of the core, with its tape and without, and one in a host."""
    took = {name: case["microseconds"] for name, case in told["cases"].items()}
    hop = took["hops"]
    yield shorter("firing with its tape / hop of call_soon", took["chain"], hop, "us")
    yield shorter("firing with its tape / without", took["chain"], took["chain, no tape"], "us")
    yield shorter("firing in a host / hop of call_soon", took["chain in a host"], hop, "us")


def channel(told: Any) -> Iterator[Share]:
    """Small items and bulk between two processes."""
    rates = {name: rate["median"] for name, rate in told["rates"].items()}
    yield faster("small items / small sends of a socket", rates["small"] / 1e3, rates["tcp small"] / 1e3, "k/s")
    for mib in (4, 64):
        through = rates[f"channel {mib} stream"] / 1e9
        yield faster(f"{mib} MiB / raw TCP", through, rates[f"tcp {mib} stream"] / 1e9, "GB/s")
        shared = rates[f"shared {mib} stream"] / 1e9
        yield faster(f"{mib} MiB by shared memory / raw TCP", shared, rates[f"tcp {mib} stream"] / 1e9, "GB/s")
        yield faster(f"{mib} MiB by shared memory / memcpy", shared, rates[f"memcpy {mib}"] / 1e9, "GB/s")


def start(told: Any) -> Iterator[Share]:
    """From a command to what it shows or trains; the limits are a process that does the same alone, or nothing."""
    found = {name: statistics.median(values) for name, values in told.items()}
    first = found["all learners have begun their first step"]
    yield shorter("first step of 2 learners / bare process", first, found["the bare process: its first step"], "s")
    nothing = found["an interpreter"]
    yield shorter("isthmus --help / an interpreter", found["isthmus --help"], nothing, "s")
    yield shorter("isthmus status / an interpreter", found["isthmus status RUN"], nothing, "s")


def merge(told: Any) -> Iterator[Share]:
    """Merging, with the outer step."""
    took = told["cases"]
    yield shorter("merge of 4 x 64 MiB / reading them", took["rda"]["ms_median"], took["read"]["ms_median"], "ms")
    rest, outer = took["last"]["ms_median"], took["last's outer step"]["ms_median"]
    yield shorter("last answer to published / outer step", rest, outer, "ms")


def learner(told: Any) -> Iterator[Share]:
    """A learner in a run."""
    yield faster("learner / bare loop, 10 ms", statistics.median(told["ratios"]), 1.0, "steps")
    inside, alone = (statistics.median(told[f"cpu_{side}_ms"]) for side in ("learner", "bare"))
    yield shorter("learner's CPU a step / bare loop's", inside, alone, "ms")


def deaths(told: Any) -> Iterator[Share]:
    """Kills of learners and of the syncer; the limit is the time between two merges when nobody is killed."""
    found = {name: statistics.median(values) for name, values in told.items()}
    calm = found["between two merges, s"]
    yield shorter("learner killed: next merge", found["next merged fragment, s"], calm, "s")
    yield shorter("learner killed: merged again", found["its next life is merged, s"], calm, "s")
    yield shorter("syncer killed: next merge", found["syncer: last merge to next, s"], calm, "s")


def sent(told: Any) -> Iterator[Share]:
    """Bytes of a step, four learners, int4 both ways."""
    whole = statistics.median(told["data-parallel"])
    coded = statistics.median(told["decoupled int4"])
    yield shorter("bytes a step / what codes and scales take", coded / 1e3, whole / told["theory"] / 1e3, "kB")


def memory(told: Any) -> Iterator[Share]:
    """The proportional set of each host at its peak, in models of 4 bytes a parameter: hosts share memory."""
    [run] = told
    model = run["model_bytes"]
    for role in ("learner", "evaluator", "syncer"):
        peak = max(size for name, size in run["proportional"].items() if name.startswith(role))
        yield shorter(f"{role}: proportional set / a model", peak / 1e6, model / 1e6, "MB")


MEASURES: Final[Mapping[str, tuple[Callable[[Any], Iterator[Share]], list[str]]]] = {
    "scheduler": (scheduler, ["bench_scheduler", "--firings", "20000", "--repeats", "9"]),
    "channel": (channel, ["bench_channel", "--repeats", "7", "--mib", "128"]),
    "start": (start, ["bench_start", "--starts", "2", "--tokens", "20000"]),
    "merge": (merge, ["bench_merge", "--learners", "4", "--repeats", "7", "--cases", "read", "rda", "last"]),
    "learner": (learner, ["bench_learner", "--pairs", "6"]),
    "deaths": (deaths, ["bench_deaths", "deaths", "syncer", "--kills", "2"]),
    "sent": (sent, ["bench_sent", "--repeats", "1", "--steps", "96"]),
    "memory": (memory, ["bench_memory", "--every", "15", "--task", f"{HERE}/memory/large.py:GPT_34M"]),
}
"""Name -> the figures of a bench, and its arguments."""


def measured(name: str, folder: Path = ROOT) -> list[Share]:
    """The figures of one bench of the tree in `folder`, as far as that has them; its own must have all."""
    figures, arguments = MEASURES[name]
    python = sys.executable if folder == ROOT else str(folder / ".venv" / "bin" / "python")
    command = [python, f"tests/bench/{arguments[0]}.py", *arguments[1:], "--json"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, stdout=subprocess.PIPE, check=False
    )
    if folder == ROOT and done.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}")
    found = list[Share]()
    with nullcontext() if folder == ROOT else suppress(LookupError, TypeError, ValueError):
        for share in figures(json.loads(done.stdout)):
            found.append(share)
    return found


def of_machine(folder: Path = ROOT) -> dict[str, Any]:
    """The commit of figures, and what they were measured with."""
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None
    return {"commit": commit, "python": platform.python_version()}


def kept_for(kind: str, kept: Path = KEPT) -> dict[str, Any]:
    """What was kept on a kind of processor; no shares where that is nothing."""
    kinds = json.loads(kept.read_text()) if kept.exists() else {}
    found: dict[str, Any] = kinds.get(kind, {"shares": {}})
    return found


def keep(kind: str, figures: Mapping[str, Any], kept: Path = KEPT) -> None:
    """Write what was measured on a kind; what was kept on others stays."""
    kinds = json.loads(kept.read_text()) if kept.exists() else {}
    kept.write_text(json.dumps({**kinds, kind: figures}, indent=1) + "\n")


def table(shares: list[Share], kept: Mapping[str, float]) -> Iterator[str]:
    """A line for each figure."""
    yield f"{'':46}{'here':>10}{'limit':>10}       {'share':>7}{'before':>7}"
    for each in shares:
        was = kept.get(each.name)
        line = f"{each.name:46}{each.value:>10.4g}{each.limit:>10.4g} {each.unit:5} {each.share:>7.3f}"
        mark = "  worse" if is_worse(each, kept) else ""
        yield line + ("" if was is None else f"{was:>7.3f}{mark}")


def is_worse(share: Share, kept: Mapping[str, float]) -> bool:
    """Whether a share is smaller than the kept one by more than a tenth."""
    return share.name in kept and share.share < WORSE * kept[share.name]


def main() -> int:
    """Measure, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MEASURES, help="may be repeated")
    parser.add_argument("--keep", action="store_true", help="write what was measured to kept.json")
    parser.add_argument(
        "--beside", type=Path, metavar="FOLDER", help="compare with the tree there, which has a .venv, bench by bench"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.keep and asked.beside:
        parser.error("--keep is of this tree alone: leave --beside out")
    if asked.keep and asked.only:
        parser.error("--keep is of all figures, which are of one commit: leave --only out")
    load, begun = os.getloadavg()[0], time.monotonic()
    kind = kind_of(Path("/proc/cpuinfo").read_text(), os.cpu_count())
    is_busy = load > LOAD_MAX
    if is_busy:
        print(f"The machine is busy (load {load:.1f}): shares are too small.", file=sys.stderr)
    shares, beside = [], []
    for name in asked.only or MEASURES:
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        since = time.monotonic()
        shares += measured(name)
        beside += measured(name, asked.beside.resolve()) if asked.beside else []
        print(f"{time.monotonic() - since:.0f} s", file=sys.stderr, flush=True)
    if asked.beside:
        before = {**of_machine(asked.beside), "shares": {each.name: each.share for each in beside}}
    else:
        before = kept_for(kind)
    here = {**of_machine(), "load": round(load, 2), "seconds": round(time.monotonic() - begun)}
    if asked.json:
        print(json.dumps({"kind": kind, **here, "figures": [asdict(each) for each in shares], "before": before}))
    else:
        print("\n".join(table(shares, before["shares"])))
        if before["shares"]:
            print(f"before: commit {before['commit']}, on {kind}")
        else:
            print(f"Nothing was kept on this kind of processor, {kind}: make bench-keep keeps these shares.")
    if asked.keep and is_busy:
        raise SystemExit("Nothing was kept: wait until the machine is idle.")
    if asked.keep:
        known = {each.name: round(each.share, 4) for each in shares}
        keep(kind, {**here, "shares": known})
        return 0
    return int(any(is_worse(each, before["shares"]) for each in shares))


if __name__ == "__main__":
    sys.exit(main())
