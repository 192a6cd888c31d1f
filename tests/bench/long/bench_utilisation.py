"""Utilisation against bandwidth, measured: steps a second over the bare loop's, by program, on links of a set rate.

    python -m tests.bench.long.bench_utilisation [--kept FILE] [--minutes 30] [--only TEXT] [--prefer] [--json]

Machines are network namespaces of this computer, with daemons and keys: a home with syncer, evaluator and recorder, and
one machine for each island, whose link is held to a rate in each direction by `tc tbf`. The kernel here has no netem,
so a delay is made by the relay of `isthmus chaos`, in the namespace of each island, through which its hosts dial. A
rate is set once all learners step: the first version crosses before. What our own channel carries on a link is measured
at each rate by `isthmus doctor --link`; a rate that it does not reach by a tenth is left out, and named.

Models of 1 and 50 million parameters (`links/paced.py`), whose steps sleep for 50 ms or a second: so cores that many
processes share decide little. Steps are counted by what the step itself writes as it begins, over whole intervals of H.
The bare loop is as many processes as islands, each with the same step and nothing else, just before each run. Each
point has three runs; POINTS were written down before. What `isthmus plan` says of them stands beside
(`utilisation.py`): `--predict` keeps that, before anything is measured.

Each run is kept as it ends, and the same call goes on. On a machine that others share the processes of a run have the
cores when they want them, which is seldom: `--prefer` gives them a weight beside which other work has little. Above
`--load-max` no run begins. Needs root, and tc.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.bench.kept_cells import KeptCells
from tests.bench.observed import ISTHMUS
from tests.bench.utilisation_points import (
    MODELS,
    OVERLAP,
    PARALLEL,
    POINTS,
    REPEATS,
    Point,
    is_reached,
    link_name,
)
from tests.programs.engine.machine.namespaces import Namespaces, why_not

HERE: Final = Path(__file__).parents[1]
TASK: Final = HERE / "links" / "paced.py"
PORT: Final = 7400
PAYLOAD: Final = 1448 / 1514
"""Of TCP, in the packets that a rate counts."""
ROUNDS_MIN: Final = 2
WINDOW_SECONDS: Final = 12.0
WINDOW_SECONDS_MAX: Final = 120.0
READY_SECONDS_MAX: Final = 240.0
SETTLE_STEPS: Final = 2
POLL_SECONDS: Final = 0.2
WAIT_SECONDS: Final = 5.0


CLUSTER: Final = """
[keys]
secret = "home.key"
"""
A_MACHINE: Final = """
[[machine]]
name = "{name}"
address = "tcp://{address}:{port}"
public_key = "{name}.pub"
roles = [{roles}]
"""
MACHINE: Final = """
[programs]
modules = ["{task}"]
[keys]
secret = "{name}.key"
admitted = [{others}]
operators = ["home.pub"]
"""


def utilisation(stamps: Sequence[Sequence[float]], interval: int, bare: float) -> tuple[float, int]:
    """Steps a second over the bare loop's, the mean of the learners, over whole intervals, and how many these were at
    least: from the moments at which each learner's steps begin. With less than one interval, over all there are."""
    shares, rounds = [], []
    for moments in stamps:
        whole = (len(moments) - 1) // interval
        last = whole * interval if whole else len(moments) - 1
        shares.append(last / (moments[last] - moments[0]) / bare if last else 0.0)
        rounds.append(whole)
    return statistics.fmean(shares), min(rounds)


# -- machines ----------------------------------------------------------------------------------------------------------


class Rig:
    """A home and machines of islands, in namespaces, with daemons; `delay_ms` is one way."""

    def __init__(self, islands: int, delay_ms: int, step_ms: int, folder: Path) -> None:
        self.folder, self.machines = folder, [f"site{number}" for number in range(islands)]
        self.stamps = folder / "stamps"
        self.stamps.mkdir()
        self.net = Namespaces("home", *self.machines, subnet="10.181.0")
        self.running = list[subprocess.Popen[str]]()
        self.environment = {
            **os.environ,
            "PACED_STEP_SECONDS": str(step_ms / 1e3),
            "PACED_STAMPS": str(self.stamps),
            "JAX_PLATFORMS": "cpu",
        }
        self._runs = 0
        try:
            self._begin(delay_ms)
        except BaseException:
            self.close()
            raise

    def _begin(self, delay_ms: int) -> None:
        names = ("home", *self.machines)
        cluster = CLUSTER
        for name in names:
            subprocess.run([ISTHMUS, "keygen", name], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
            roles = '"syncer", "evaluator"' if name == "home" else '"learner"'
            cluster += A_MACHINE.format(name=name, address=self.net.addresses[name], port=PORT, roles=roles)
            cluster += "" if name == "home" else "islands = 1\n"
            others = ", ".join(f'"{each}.pub"' for each in names if each != name)
            machine = MACHINE.format(name=name, others=others, task=TASK)
            (self.folder / f"{name}.toml").write_text(machine)
        (self.folder / "cluster.toml").write_text(cluster)
        for name in names:
            more = {}
            if delay_ms and name != "home":
                relay = self._popen(name, sys.executable, "-m", __spec__.name, "--relay", str(delay_ms))
                assert relay.stdout is not None
                more["ISTHMUS_SOCKS_PROXY"] = relay.stdout.readline().strip()
            listen = f"tcp://{self.net.addresses[name]}:{PORT}"
            self._popen(
                name, ISTHMUS, "daemon", "--name", name, "--listen", listen, "--config", f"{name}.toml", more=more
            )

    def _popen(self, machine: str, *words: object, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        environment = {**self.environment, **(more or {}), "XDG_STATE_HOME": str(self.folder / f"state-{machine}")}
        environment["PYTHONPATH"] = str(HERE.parents[1])
        command = [*self.net.prefix(machine), *map(str, words)]
        with (self.folder / f"{machine}.log").open("a") as log:
            output = subprocess.PIPE if "--relay" in words else log
            made = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=output, stderr=log, text=True)
        self.running.append(made)
        return made

    def call(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """A command on the home."""
        command = [*self.net.prefix("home"), str(ISTHMUS), *words]
        environment = {**self.environment, "XDG_STATE_HOME": str(self.folder / "state-home")}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, **more
        )

    def hold(self, mbit: int | None, *, is_direct: bool = False) -> None:
        """Hold every island's link to a rate in each direction, or to none: where islands send, and, in a class for
        each, where the home sends to them.

        The ring of data-parallel passes the home, as learners only dial, and there a chunk would wait for two links in
        turn. `is_direct` leaves the second away: so a chunk takes as long as on a connection between the islands.
        """
        for machine in ("home", *self.machines):
            self._shape(machine, "del", "dev", "eth0", "root", check=False)
        if mbit is None:
            return
        burst = max(65536, int(mbit * 1e6 / 8 * 0.004))  # Of 4 ms: a tick of the kernel's clock.
        limits = ("tbf", "rate", f"{mbit}mbit", "burst", str(burst), "latency", "100ms")
        if not is_direct:
            self._shape("home", "add", "dev", "eth0", "root", "handle", "1:", "htb")
        for number, machine in enumerate(self.machines, 2):
            self._shape(machine, "add", "dev", "eth0", "root", *limits)
            if is_direct:
                continue
            flow, address = f"1:{number}", f"{self.net.addresses[machine]}/32"
            tc = (*self.net.prefix("home"), "tc")
            free = ("rate", "40gbit", "quantum", "60000")
            subprocess.run(
                [*tc, "class", "add", "dev", "eth0", "parent", "1:", "classid", flow, "htb", *free], check=True
            )
            self._shape("home", "add", "dev", "eth0", "parent", flow, *limits)
            match = ("protocol", "ip", "u32", "match", "ip", "dst", address, "flowid", flow)
            subprocess.run([*tc, "filter", "add", "dev", "eth0", "parent", "1:", *match], check=True)

    def _shape(self, machine: str, *words: str, check: bool = True) -> None:
        command = [*self.net.prefix(machine), "tc", "qdisc", *words]
        subprocess.run(command, check=check, capture_output=not check)

    def link(self) -> dict[str, Any]:
        """What our channel carries between the home and the first island, by `isthmus doctor --link`."""
        for _ in range(60):
            done = self.call("doctor", "--link", "home", self.machines[0], "--cluster", "cluster.toml", "--json")
            if not done.returncode:
                return dict(json.loads(done.stdout)["pairs"][0])
            time.sleep(1.0)
        raise SystemExit(done.stderr)

    @contextmanager
    def run(self, point: Point) -> Iterator[Path]:
        """A run of a point, once its command is taken; ended when the block ends."""
        self._runs += 1
        name = f"run{self._runs}"
        for each in self.stamps.iterdir():
            each.unlink()
        settings = {"evaluate": "none", "spare": "false", "snapshot_every_seconds": 86400}
        words = [f"run.{key}={value}" for key, value in settings.items()]
        words += [f"program.{key}={value}" for key, value in point.settings.items()]
        command = ["train", point.program, "--task", f"{TASK}:{MODELS[point.model].task}", "--cluster", "cluster.toml"]
        command += ["--tokens", str(10**12), "--run-dir", name, "--detach", "--learners", str(point.islands)]
        for attempt in range(30):
            done = self.call(*command, *(part for word in words for part in ("--set", word)))
            if not done.returncode:
                break
            if attempt == 29:
                raise SystemExit(done.stderr)
            time.sleep(1.0)
        try:
            yield self.folder / name
        finally:
            self.hold(None)
            stopped = self.call("stop", "--cluster", "cluster.toml")
            until = time.monotonic() + 60
            while not (self.folder / name / "over.json").exists():
                if time.monotonic() > until:
                    raise SystemExit(f"the run does not end: {stopped.stderr}")
                time.sleep(POLL_SECONDS)

    def moments(self, since: float = 0.0) -> list[list[float]]:
        """When the steps of each learner began."""
        texts = [path.read_text().rpartition("\n")[0] for path in sorted(self.stamps.iterdir())]
        found = [[at for at in map(float, text.split()) if at >= since] for text in texts]
        return [each for each in found if each]

    def prefer(self) -> None:
        """Prefer all processes to those of others: each session is a group of the kernel's, with a weight."""
        for name in ("home", *self.machines):
            for pid in self.net.processes(name):
                prefer(pid)

    def close(self) -> None:
        """End everything."""
        for each in self.running:
            each.terminate()
        for each in self.running:
            try:
                each.wait(20)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
        for name in ("home", *self.machines):
            left = subprocess.run(
                ["ip", "netns", "pids", self.net.name(name)], capture_output=True, text=True, check=False
            )
            for pid in left.stdout.split():
                subprocess.run(["kill", "-9", pid], check=False)
        self.net.close()


def prefer(pid: int) -> None:
    """Give the session of a process the greatest weight beside other sessions, among which a mere nice counts not."""
    with suppress(OSError):  # It has ended, or the kernel has no such groups.
        Path(f"/proc/{pid}/autogroup").write_text("-20")


def relay(delay_ms: float) -> None:
    """Delay what this namespace's hosts dial, until the process is ended."""
    from isthmus.programs.wings.chaos.chaos_strikes import LinkProxy, WayConditions

    proxy = LinkProxy(lambda pid: "all", WayConditions(latency=delay_ms / 1e3))
    print(proxy.address, flush=True)
    threading.Event().wait()


# -- measuring ---------------------------------------------------------------------------------------------------------


def bare_loop(task: str, steps: int) -> None:
    """The step of a task and nothing else: prints the steps a second of the last ones."""
    import jax
    import optax

    sys.path.insert(0, str(TASK.parent))
    import paced  # type: ignore[import-not-found]

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    model = getattr(paced, task)
    parameters = model.init(jax.random.key(0))
    state = model.optimizer.init(parameters)

    class At:
        split, seed, slot, position = "training", 0, 0, 0

        def rng(self) -> Any:
            import numpy as np

            return np.random.default_rng(0)

    def step(parameters: Any, state: Any, batch: Any) -> Any:
        loss, gradient = jax.value_and_grad(model.loss)(parameters, batch)
        updates, state = model.optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    compiled = jax.jit(step, donate_argnums=(0, 1))
    begun = 0.0
    for index in range(steps + 3):
        if index == 3:
            begun = time.monotonic()
        parameters, state, loss = compiled(parameters, state, model.batch(At()))
        loss.block_until_ready()
    print(steps / (time.monotonic() - begun))


def bare(point: Point, environment: Mapping[str, str]) -> float:
    """The median steps a second of bare loops, as many at once as there are islands."""
    from isthmus.runtime.system.processes import ONE_THREAD

    steps = max(5, round(5.0 / (point.step_ms / 1e3)))
    command = [sys.executable, "-m", __spec__.name, "--bare", MODELS[point.model].task, "--steps", str(steps)]
    own = {**environment, **ONE_THREAD, "PACED_STAMPS": "", "PYTHONPATH": str(HERE.parents[1])}
    loops = [
        subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1])
        for _ in range(point.islands)
    ]
    return statistics.median(float(each.communicate(timeout=300)[0]) for each in loops)


def _wait(holds: Callable[[], bool], seconds: float, fault: str) -> None:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(fault)
        time.sleep(POLL_SECONDS)


def measured(rig: Rig, point: Point, *, is_preferred: bool) -> dict[str, Any]:
    """One run of a point."""
    begun = time.monotonic()
    alone = bare(point, rig.environment)
    load = os.getloadavg()[0]
    with rig.run(point) as folder:

        def are_stepping(since: float, steps: int) -> bool:
            moments = rig.moments(since)
            return len(moments) == point.islands and all(len(each) >= steps for each in moments)

        settle = SETTLE_STEPS if point.program == PARALLEL else 2 * OVERLAP
        _wait(lambda: are_stepping(0.0, settle), READY_SECONDS_MAX, f"no steps: {folder}")
        if is_preferred:
            rig.prefer()
        rig.hold(point.mbit, is_direct=point.program == PARALLEL)
        held = time.monotonic()
        _wait(lambda: are_stepping(held, settle), READY_SECONDS_MAX, f"no steps on the link: {folder}")
        since = time.monotonic()
        window = max(WINDOW_SECONDS, 5 * point.step_ms / 1e3)
        while True:
            time.sleep(POLL_SECONDS)
            took, moments = time.monotonic() - since, rig.moments(since)
            rounds = min((len(each) - 1) // point.interval for each in moments) if moments else 0
            is_enough = len(moments) == point.islands and rounds >= ROUNDS_MIN
            if took > WINDOW_SECONDS_MAX or (took > window and is_enough):
                break
        share, rounds = utilisation(rig.moments(since), point.interval, alone)
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "utilisation": share,
        "bare_steps_per_second": alone,
        "rounds": rounds,
        "merged": summary.get("merged_share"),
        "voters": summary.get("contributors_mean"),
        "load": load,
        "preferred": is_preferred,
        "took": time.monotonic() - begun,
    }


def measure_all(kept: KeptCells, asked: argparse.Namespace, until: float) -> None:
    """Run after run that is not there yet, until the time is over: first one of each point, then the others."""
    wanted = [(point, run) for run in range(REPEATS) for point in POINTS if not asked.only or asked.only in point.name]
    rig, made = None, None
    if asked.prefer:
        prefer(os.getpid())
    with ExitStack() as stack:
        for point, run in wanted:
            name = f"{point.name}, run {run}"
            if name in kept:
                continue
            while os.getloadavg()[0] > asked.load_max and time.monotonic() < until:
                time.sleep(WAIT_SECONDS)
            if time.monotonic() > until:
                return
            if rig is None or made != (point.islands, point.delay_ms, point.step_ms):
                stack.pop_all().close()
                made = (point.islands, point.delay_ms, point.step_ms)
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
                rig = Rig(*made, folder)
                stack.callback(rig.close)
            if link_name(point) not in kept:
                rig.hold(point.mbit)
                ways = rig.link()["directions"]
                rig.hold(None)
                shares = [(way["bytes_per_second"] or 0.0) * 8 / (point.mbit * 1e6 * PAYLOAD) for way in ways]
                kept.keep(link_name(point), {"shares": shares, "load": os.getloadavg()[0]})
            if not is_reached(kept, point):
                continue
            kept.keep(name, measured(rig, point, is_preferred=asked.prefer))
            print(name, json.dumps(kept[name]), file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, default=HERE / "utilisation.json")
    parser.add_argument("--minutes", type=float, default=30.0, help="0: the table alone")
    parser.add_argument("--prefer", action="store_true", help="processes of a run to others of this machine")
    parser.add_argument("--load-max", type=float, default=24.0, help="processes that wait for a core, at a run's begin")
    parser.add_argument("--only", help="points whose name has this text")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--predict", action="store_true", help="keep what `isthmus plan` says, of points without it")
    parser.add_argument("--picture", type=Path, help="an SVG of the table")
    parser.add_argument("--relay", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.relay is not None:
        relay(asked.relay)
    if asked.bare:
        bare_loop(asked.bare, asked.steps)
        return 0
    kept = KeptCells(asked.kept, starts_hosts=True)
    if asked.predict:
        from tests.bench import utilisation  # What is planned makes no cell of a run, nor does what shows them.

        utilisation.predict(kept)
        return 0
    if asked.minutes:
        if reason := why_not():
            raise SystemExit(reason)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # Machines are taken away, then.
        measure_all(kept, asked, time.monotonic() + 60 * asked.minutes)
    if asked.json:
        print(json.dumps(kept))
        return 0
    from tests.bench import utilisation

    print(utilisation.table(kept))
    if asked.picture is not None:
        asked.picture.write_text(utilisation.picture(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
