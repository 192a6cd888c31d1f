"""One request carried out in virtual time: its bodies compute for real, and durations are given.

The `world` fixture and `isthmus compare` share it. With faults the hosts are on machines of their own, over the real
wire on simulated sockets, and are restarted; without, over a simpler network that is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

from isthmus.programs.engine.recorder import summary
from isthmus.programs.engine.recorder.graph_parts import fragment_sizes, roster_counts
from isthmus.programs.engine.recorder.run_references import resolving
from isthmus.programs.engine.recorder.summary import summarise
from isthmus.programs.engine.request.reference import resolve
from isthmus.programs.engine.request.request import Request
from isthmus.programs.program_graph import REGION
from isthmus.programs.update_settings import step_tokens_of
from isthmus.programs.wings.simulation.places import MACHINES, cast_of
from isthmus.runtime.clock import Duration, milliseconds
from isthmus.runtime.errors import RunError
from isthmus.runtime.host.contract import Trace
from isthmus.runtime.ids import ONE_RECORDER, Replica
from isthmus.runtime.sim.faults import Fault as SimulatedFault
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import HOME, Universe
from isthmus.runtime.sim.world import World
from isthmus.runtime.supervision.flows import RunFlows

AnyWorld: TypeAlias = World | Universe
SECONDS_MAX: Final = 3600.0
"""Virtual seconds that a run may take."""


@final
@dataclass(frozen=True, slots=True)
class VirtualPace:
    """Durations in virtual time: an inner step takes `step_ms` / `speeds[slot]` (default 1), any other firing the
    `parts`-th part of `step_ms`, a transfer between hosts `delay_ms`, all with `jitter`, a share."""

    speeds: tuple[float, ...] = ()
    step_ms: float = 10.0
    delay_ms: float = 1.0
    jitter: float = 0.05
    parts: int = 50

    def duration(self, replica: Replica, node: str) -> Duration:
        """The duration of a firing, before jitter."""
        if node != "inner-step":
            return milliseconds(self.step_ms / self.parts)
        return milliseconds(self.step_ms / (self.speeds[replica.slot] if replica.slot < len(self.speeds) else 1.0))


@final
@dataclass(slots=True)
class VirtualRun:
    """A run in virtual time, carried out by `run`; then `summary` has its figures, `status` is the recorder's last."""

    request: Request
    pace: VirtualPace = VirtualPace()
    faults: Sequence[SimulatedFault] = ()
    trace: Trace = field(default_factory=Trace)
    world: AnyWorld = field(init=False)
    status: dict[str, Any] = field(init=False, default_factory=dict)
    summary: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.world = self._world()

    def run(self, seconds_max: float = SECONDS_MAX) -> None:
        """Run to the end. RunError if a body fails or a fault did not happen, TimeoutError if the run is not over after
        `seconds_max` virtual seconds."""
        world, request = self.world, self.request
        world.run(lambda: ("recorder/0", "record") in world.ended, seconds_max=seconds_max)
        if isinstance(world, Universe):
            world.disks[HOME].copy_to(request.run_dir)
            if world.injector.missed:
                raise RunError(f"the run was over before these happened: {'; '.join(world.injector.missed)}")
        hosts, job = world.hosts, request.job
        status = self.status = hosts[ONE_RECORDER].published["record"]
        self.summary = summarise(
            status,
            self.trace.spans,
            program=request.name,
            outcome="failed" if status["error"] is not None else "stopped" if status["stop_reason"] else "done",
            learners=job.learners,
            shards=roster_counts(request.graph, job.learners).get("syncer", 0),
            fragment_sizes=fragment_sizes(request.graph),
            ended=world.clock.now(),
            cpu_seconds=0.0,
            graph=request.graph,
            flows=RunFlows.of(((replica, host.flows) for replica, host in hosts.items()), REGION),
            merges_recorded=summary.merges(request.run_dir),
            step_tokens=step_tokens_of(request.job),
        )

    def _world(self) -> AnyWorld:
        request, pace = self.request, self.pace
        resolver = resolving(request.run_dir, resolve, request.run.snapshot_every_seconds)
        counts = roster_counts(request.graph, request.job.learners)
        if self.faults:
            return Universe(
                request.plans,
                cast_of(counts, {}),
                MACHINES,
                seed=request.job.seed,
                resolve=resolver,
                duration=pace.duration,
                jitter=pace.jitter,
                climate=Climate(latency=pace.delay_ms / 1e3, jitter=pace.jitter * pace.delay_ms / 1e3),
                faults=self.faults,
                trace=self.trace,
            )
        return World(
            request.plans,
            counts,
            seed=request.job.seed,
            resolve=resolver,
            duration=pace.duration,
            delay=lambda edge, size_bytes: milliseconds(pace.delay_ms),
            jitter=pace.jitter,
            trace=self.trace,
        )
