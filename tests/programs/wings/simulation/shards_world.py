"""A run of Decoupled DiLoCo in virtual time in which hosts die and come back: real hosts, cores and bodies.

Deaths are seen by the others some time later, by each at another moment, as a daemon tells them. `Witness` looks at
what bodies take and give, and asserts what must hold at every moment.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from isthmus import Program, Task
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.ops.syncer.pacer import Pacer
from isthmus.ops.syncer.schedule import rounds_in_flight_max
from isthmus.programs.engine.recorder.graph_parts import fragment_sizes, roster_counts
from isthmus.programs.engine.recorder.run_references import resolving
from isthmus.programs.engine.recorder.summary import summarise
from isthmus.programs.engine.request import new_folder
from isthmus.programs.engine.request.reference import resolve
from isthmus.programs.engine.request.request import prepare
from isthmus.runtime.channels.in_process import Network
from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.cores.scheduler_events import ReplicaJoined, ReplicaLeft
from isthmus.runtime.host.driver import Host
from isthmus.runtime.host.virtual_time import InlineExecutor, VirtualClock, jittered
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.flows import RunFlows

Version = tuple[int, int]
STEP_MS = 10.0


class Death(NamedTuple):
    """A host dies `at_ms` after the start, and its next life begins `away_ms` later."""

    replica: str
    at_ms: float
    away_ms: float


class Witness:
    """What was merged into every version of every fragment, and what was published as it."""

    def __init__(self) -> None:
        self.work: dict[tuple[int, Version], list[tuple[int, int, int, int]]] = {}
        """(fragment, version) -> (slot, incarnation, begin, end) of all that is merged in it."""
        self.published: dict[tuple[int, Version], bytes] = {}
        self.newest: dict[int, Version] = {}
        self.recovered: list[tuple[int, Version]] = []
        self.held: dict[tuple[int, int, int], Version] = {}
        """(slot, incarnation, fragment) -> what a learner has adopted."""
        self.live: set[Member] = set()
        self._base: dict[tuple[int, int, int], Version] = {}

    def opened(self, pacer: Any, emitted: list[tuple[str, Any]] | None) -> None:
        """A pacer has fired: at each opening no more rounds are open than may be, never two of a fragment."""
        rounds = [item for port, item in emitted or [] if port == "round" and item["attempt"] == 1]
        merging = [found for found in pacer._rounds.values() if found.item["kind"] == "merge"]
        if any(item["kind"] == "merge" for item in rounds):
            settings = (pacer.overlap, pacer._fragments, pacer.interval, pacer._shards)
            assert len(merging) <= rounds_in_flight_max(*settings)
        shard = pacer._context.member.replica.slot
        assert all(item["fragment"] % pacer._shards == shard for item in rounds)
        assert len({item["fragment"] for item in rounds}) == len(rounds)

    def merged(self, merge: Any, answers: Mapping[Any, Any], gradient: Mapping[str, Any]) -> None:
        """A merge node has fired: nothing is merged that the version before has."""
        p, record = gradient["fragment"], gradient["merging"]
        life = (merge._shard, merge._epoch, p)
        if record["version"] is None:
            return
        version: Version = (record["version"][0], record["version"][1])
        if gradient["kind"] in ("initial", "recover"):
            self._base[life] = version
            self.work.setdefault((p, version), [])
            if gradient["kind"] == "recover":
                self._judge_recovery(p, version)
            return
        work = list(self.work[p, self._base[life]])
        for answer in answers.values():
            if answer["slot"] in record["voters"]:
                mine = (answer["slot"], answer["incarnation"])
                begun, ended = answer["begin"], answer["end"]
                assert all(end <= begun or ended <= begin for *who, begin, end in work if tuple(who) == mine)
                work.append((*mine, begun, ended))
        assert (p, version) not in self.work
        self.work[p, version] = work
        self._base[life] = version

    def stepped(self, update: Mapping[str, Any]) -> None:
        """An update left: versions only grow, and one version is always the same bytes."""
        p, version = update["fragment"], (update["version"][0], update["version"][1])
        assert version >= self.newest.get(p, (0, 0)) or update["kind"] == "recover"
        self.newest[p] = version
        assert self.published.setdefault((p, version), update["values"].tobytes()) == update["values"].tobytes()

    def adopted(self, step: Any) -> None:
        """A learner has come to a boundary: what it holds is what was published."""
        for p, holding in enumerate(step._held):
            if holding is None:
                continue
            life = (step._slot, step._incarnation, p)
            version: Version = (holding.ledger.base[0], holding.ledger.base[1])
            assert version >= self.held.get(life, (0, 0))
            self.held[life] = version
            assert holding.anchor.tobytes() == self.published[p, version]

    def _judge_recovery(self, p: int, version: Version) -> None:
        """Nobody who is there holds a newer version than the one that a shard goes on from."""
        self.recovered.append((p, version))
        known = [
            held
            for (slot, life, fragment), held in self.held.items()
            if fragment == p and Member(Replica("learner", slot), life) in self.live
        ]
        assert version >= max(known, default=version)  # Else it has it from its neighbour.

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at every firing of every body."""

        def after(cls: type[Any], see: Any) -> Any:
            call = cls.__call__

            @wraps(call)
            def seen(body: Any, **inputs: Any) -> Any:
                result = call(body, **inputs)
                see(body, inputs, result)
                return result

            return mock.patch.object(cls, "__call__", seen)

        with ExitStack() as patches:
            patches.enter_context(after(Pacer, lambda body, _, out: self.opened(body, out)))
            patches.enter_context(
                after(Merge, lambda body, inputs, out: self.merged(body, inputs["answer"], out["gradient"]))
            )
            patches.enter_context(
                after(OuterStep, lambda _, inputs, out: self.stepped(out["update"]) if "update" in out else None)
            )
            patches.enter_context(after(InnerStep, lambda body, inputs, out: self.adopted(body)))
            yield


class Mortals:
    """The hosts of one run. `summary` and `status` are there once `run` has returned."""

    def __init__(self, folder: Path, program: Program, task: Task, *, learners: int, steps: int, seed: int = 0) -> None:
        budget = {"learners": learners, "tokens": steps * learners * task.tokens_per_batch, "seed": seed}
        self.request = prepare(program, task, run=budget, run_dir=folder)
        new_folder.create(folder, self.request.config_text)
        self.witness = Witness()
        self.clock = VirtualClock()
        self.counts = roster_counts(self.request.graph, learners)
        self.hosts: dict[Replica, Host] = {}
        self.errors: list[str] = []
        self.died: list[str] = []
        self._network = Network(self.clock, delay=lambda *_: milliseconds(1.0))
        self._seed, self._rng = seed, random.Random(seed)
        self._lives: dict[Replica, int] = {}
        self._heard: dict[Member, Instant] = {}
        self._is_over = False

    def run(self, *, speeds: tuple[float, ...] = (), deaths: tuple[Death, ...] = (), seconds_max: float = 600) -> None:
        """Start everybody, let die who is to die, and go on until the recorder has everything final."""
        self._speeds = speeds
        replicas = [Replica(role, slot) for role in self.counts for slot in range(self.counts[role])]
        for replica in replicas:
            self._make(replica)
        members = [host.member for host in self.hosts.values()]
        for death in deaths:
            self._after(death.at_ms, lambda death=death: self._die(death))
        with self.witness.watching():
            for host in list(self.hosts.values()):
                host.start(members)
            self.clock.run(lambda: self._is_over or bool(self.errors), Instant(seconds(seconds_max)))
        assert not self.errors, self.errors
        for host in self.hosts.values():
            host.scheduler.check()
        self.status = self.hosts[Replica("recorder", 0)].published["record"]
        self.summary = summarise(
            self.status,
            [],
            program="decoupled-diloco",
            outcome="done",
            learners=self.counts["learner"],
            shards=self.counts["syncer"],
            fragment_sizes=fragment_sizes(self.request.graph),
            ended=self.clock.now(),
            cpu_seconds=0.0,
            graph=self.request.graph,
            flows=RunFlows(),
        )
        for host in self.hosts.values():
            host.close()
            host.bodies.close()

    def _make(self, replica: Replica) -> Host:
        life = self._lives[replica] = self._lives.get(replica, 0) + 1
        plan, member = self.request.plans[replica.role], Member(replica, life)
        speed = self._speeds[replica.slot] if replica.slot < len(self._speeds) else 1.0

        def duration(node: str) -> Duration:
            return milliseconds(STEP_MS / speed if node == "inner-step" else STEP_MS / 50)

        names = {node.index: node.name for node in plan.nodes}
        streams = {
            index: jittered(duration(name), 0.1, hash_of(self._seed, replica, index)) for index, name in names.items()
        }
        host = self.hosts[replica] = Host(
            plan,
            member,
            clock=self.clock,
            channel=self._network.join(member),
            executor=InlineExecutor(self.clock, lambda node: streams[node]()),
            seed=self._seed,
            resolve=resolving(self.request.run_dir, resolve, self.request.run.snapshot_every_seconds),
            on_ended=lambda host, node: self._ended(host),
            on_failed=lambda host, node, error: self.errors.append(f"{host.member}, {node}: {error}"),
        )
        self.witness.live.add(member)
        return host

    def _ended(self, host: Host) -> None:
        self._is_over |= host.member.replica.role == "recorder"

    def _die(self, death: Death) -> None:
        """A host is gone at once; the others hear of it one by one."""
        replica = Replica.parse(death.replica)
        host = self.hosts.pop(replica, None)
        if host is None:
            return
        self.died.append(death.replica)
        self.witness.live.discard(host.member)
        host.close()
        host.bodies.close()
        self._tell(ReplicaLeft(host.member))
        self._after(max(death.away_ms, 25.0), lambda: self._come_back(replica))

    def _come_back(self, replica: Replica) -> None:
        live = [host.member for host in self.hosts.values()]
        host = self._make(replica)
        host.start([*live, host.member])
        self._tell(ReplicaJoined(host.member))

    def _tell(self, event: ReplicaLeft | ReplicaJoined) -> None:
        """Everybody else hears it, within 20 ms, and nobody before what happened earlier."""
        for host in list(self.hosts.values()):
            if host.member != event.member:
                at = self.clock.now() + milliseconds(self._rng.uniform(0.0, 20.0))
                heard = self._heard[host.member] = Instant(max(at, self._heard.get(host.member, 0)))
                self.clock.call_at(heard, lambda host=host: self._hear(host, event))

    def _hear(self, host: Host, event: ReplicaLeft | ReplicaJoined) -> None:
        if self.hosts.get(host.member.replica) is host:
            host.handle(event)

    def _after(self, ms: float, do: Any) -> None:
        self.clock.call_at(Instant(self.clock.now() + milliseconds(ms)), do)


def hash_of(*parts: Any) -> int:
    """The same number for the same parts, in every process."""
    return random.Random(" ".join(map(str, parts))).getrandbits(32)
