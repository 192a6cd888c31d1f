"""A made-up run folder for the tests of the report: the files of a run, with plausible contents, in an instant.

`build` invents a Decoupled DiLoCo run: learners that step at their own speeds without pause, rounds that open as the
fastest of them goes on, answers that travel, a merge, updates that travel back. `away` takes one learner out for a
part of the run. Nothing here is measured, and none of it is ever shown to a user.
"""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from isthmus.runtime.clock import seconds
from isthmus.runtime.host.contract import Span, as_perfetto

BATCH_TOKENS = 512
INTERVAL = 24
SHAPES = {"embedding": (256, 64), "head": (64, 256), "norm": (64,)}
FRAGMENT_BYTES = 66_000


@dataclass(slots=True)
class Invention:
    """What a made-up run consists of, before it is written."""

    learners: int
    fragments: int
    steps: int
    step_seconds: float
    delay_seconds: float
    seed: int
    away: int | None
    rng: random.Random = field(init=False)
    ends: list[list[float]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    merges: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def span(self, host: str, name: str, begun: float, ended: float, peer: str = "", size_bytes: int = 0) -> None:
        self.spans.append(Span(host, name, seconds(begun), seconds(ended), peer, size_bytes))

    def delay(self) -> float:
        return self.delay_seconds * self.rng.uniform(0.7, 1.6)

    def step(self) -> None:
        """Every learner's inner steps."""
        wall = self.steps * self.step_seconds
        for slot in range(self.learners):
            pace, now = self.step_seconds * (1 + 0.09 * (slot % 4)), 0.003 * (slot % 64)
            ends = []
            while now < wall:
                if slot == self.away and 0.35 * wall < now < 0.47 * wall:
                    now = 0.47 * wall
                took = pace * self.rng.uniform(0.93, 1.09)
                self.span(f"learner/{slot}", "data", now, now + took * 0.1)
                self.span(f"learner/{slot}", "inner-step", now, now + took)
                now += took + 4e-5
                ends.append(now)
            self.ends.append(ends)

    def merge(self) -> None:
        """Every round: pull, answers, quorum, grace, merge, outer step, updates."""
        fastest = self.ends[0]
        pace = max(INTERVAL // self.fragments, 1)
        for number, index in enumerate(range(2, len(fastest) - 8, pace)):
            self._round(number, fastest[index] + 0.001)

    def _round(self, number: int, opened: float) -> None:
        fragment, arrivals = number % self.fragments, {}
        self.span("syncer/0", "pacer", opened - 2e-4, opened)
        for slot, ends in enumerate(self.ends):
            host, pulled = f"learner/{slot}", opened + self.delay() * 0.3
            self.span("syncer/0", "pacer.pull -> inner-step.pull", opened, pulled, host, 120)
            at = bisect_right(ends, pulled)
            if at >= len(ends) or ends[at] - pulled > 3 * self.step_seconds:
                continue
            boundary = ends[at] + 0.0004
            sent = boundary + self.step_seconds * 0.12
            self.span(host, "fragment-send", boundary, sent)
            arrivals[slot] = sent + self.delay()
            edge = "fragment-send.answer -> merge.answer"
            self.span(host, edge, sent, arrivals[slot], "syncer/0", FRAGMENT_BYTES)
        if arrivals:
            self._close(number, fragment, opened, arrivals)

    def _close(self, number: int, fragment: int, opened: float, arrivals: dict[int, float]) -> None:
        quorum = min(arrivals.values())
        deadline = quorum + 1.15 * self.step_seconds
        voters = sorted(slot for slot, at in arrivals.items() if at <= deadline)
        left_out = [slot for slot in range(self.learners) if slot not in voters]
        closed = deadline if left_out else max(arrivals[slot] for slot in voters)
        merged = closed + self.step_seconds * 0.05
        published = merged + self.step_seconds * 0.05
        self.span("syncer/0", "merge", closed, merged)
        self.span("syncer/0", "outer-step", merged, published)
        for slot in range(self.learners):
            arrived = published + self.delay()
            edge = "outer-step.update -> inner-step.update"
            self.span("syncer/0", edge, published, arrived, f"learner/{slot}", FRAGMENT_BYTES)
        late = [[slot, "late by 4 ms"] for slot in arrivals if slot not in voters]
        why = "every live learner has answered" if not left_out else "the grace window of 30 ms ended"
        self.merges.append(
            {
                "time": published,
                "fragment": fragment,
                "round": number,
                "kind": "merge",
                "version": [1, number // self.fragments + 1],
                "voters": voters,
                "weights": [1 / len(voters)] * len(voters),
                "left_out": left_out,
                "refused": late,
                "reason": f"{len(voters)} of {self.learners} answers, quorum 1: {why}",
                "quorum_ms": 1e3 * (quorum - opened),
                "grace_ms_used": 1e3 * (closed - quorum),
                "norm": 0.4 + 0.1 * self.rng.random(),
            }
        )

    def loss(self, tokens: float) -> float:
        total = self.steps * self.learners * BATCH_TOKENS
        return 1.35 + 2.2 * math.exp(-8 * tokens / total) + 2.0 * math.exp(-60 * tokens / total)

    def reports(self) -> list[dict[str, Any]]:
        rows = []
        for slot, ends in enumerate(self.ends):
            for step in range(3, len(ends), 3):
                tokens = step * BATCH_TOKENS
                row = {"time": ends[step], "learner": slot, "incarnation": 1, "phase": "stepping", "step": step}
                row |= {"tokens": tokens, "loss": self.loss(tokens * self.learners) + self.rng.gauss(0.08, 0.12)}
                row |= {"staleness": 2, "bytes_sent": step * 22_000, "bytes_received": step * 22_000}
                rows.append(row)
        return sorted(rows, key=lambda row: row["time"])

    def evaluations(self) -> list[dict[str, Any]]:
        tokens, wall = sum(map(len, self.ends)) * BATCH_TOKENS, max(ends[-1] for ends in self.ends)
        rows = []
        for index in range(21):
            share, kind = index / 20, "initial" if index == 0 else "final" if index == 20 else "during"
            row = {"time": share * wall, "tokens": round(share * tokens), "kind": kind}
            rows.append(row | {"eval_loss": self.loss(share * tokens) + 0.02 * math.sin(index)})
            self.span("evaluator/0", "evaluate", share * wall, share * wall + 6 * self.step_seconds)
        return rows

    def summary(self, program: str, evaluations: list[dict[str, Any]]) -> dict[str, Any]:
        steps = [len(ends) for ends in self.ends]
        tokens = sum(steps) * BATCH_TOKENS
        merged, overlapped, lost = 0.931 * tokens, 0.055 * tokens, (0.004 * tokens if self.away is not None else 0.0)
        contributors = [len(merge["voters"]) for merge in self.merges]
        rows = [
            {
                "learner": slot,
                "steps": count,
                "tokens": count * BATCH_TOKENS,
                "stall_seconds": 0.01 * slot,
                "bytes_sent": count * 22_000,
                "bytes_received": count * 22_500,
                "restarts": int(slot == self.away),
                "device_kind": "cpu",
            }
            for slot, count in enumerate(steps)
        ]
        return {
            "program": program,
            "outcome": "done",
            "learners": self.learners,
            "syncer_shards": 1,
            "fragments": self.fragments,
            "tokens_total": tokens,
            "tokens_merged": merged,
            "tokens_overlapped": overlapped,
            "tokens_refused": 0.003 * tokens,
            "tokens_lost": lost,
            "tokens_pending": tokens - merged - overlapped - lost - 0.003 * tokens,
            "outer_steps": len(self.merges),
            "contributors_mean": sum(contributors) / max(len(contributors), 1),
            "merged_share": merged / tokens,
            "cpu_seconds_total": 0.3 * max(ends[-1] for ends in self.ends),
            "eval_loss_initial": evaluations[0]["eval_loss"],
            "eval_loss_final": evaluations[-1]["eval_loss"],
            "wall_seconds": max(ends[-1] for ends in self.ends),
            "goodput": 0.9841,
            "uptime": 1.0,
            "bytes_sent_total": sum(steps) * 44_000,
            "bytes_home_total": sum(steps) * 4_000,
            "per_learner": rows,
        }


def graph_of(program: str) -> dict[str, Any]:
    """graph.json of Decoupled DiLoCo."""
    nodes = [
        ("data", "learner", "Batches"),
        ("inner-step", "learner", "InnerStep"),
        ("fragment-send", "learner", "FragmentSend"),
        ("pacer", "syncer", "Pacer"),
        ("merge", "syncer", "Merge"),
        ("outer-step", "syncer", "OuterStep"),
        ("evaluate", "evaluator", "Evaluate"),
        ("recorder", "recorder", "Recorder"),
    ]
    edges = [
        ("data.batch", "inner-step.batch", "Queue", None),
        ("inner-step.fragment", "fragment-send.capture", "Latest", "fragment"),
        ("pacer.round", "merge.round", "Queue", None),
        ("merge.gradient", "outer-step.gradient", "Queue", None),
        ("pacer.pull", "inner-step.pull", "Latest", None),
        ("fragment-send.answer", "merge.answer", "Latest", "fragment"),
        ("outer-step.update", "inner-step.update", "Latest", "fragment"),
        ("outer-step.update", "evaluate.update", "Latest", "fragment"),
        ("inner-step.progress", "pacer.progress", "Latest", None),
        ("inner-step.progress", "recorder.progress", "Latest", None),
        ("merge.merging", "recorder.merging", "Queue", None),
        ("evaluate.result", "recorder.evaluation", "Latest", None),
        ("recorder.control", "pacer.control", "Latest", None),
    ]
    return {
        "program": program,
        "fingerprint": "9f0c63e2a1b7",
        "roles": [
            {"name": "learner", "replicas_min": 1, "replicas_max": 16},
            {"name": "syncer", "replicas_min": 1, "replicas_max": 1},
            {"name": "evaluator", "replicas_min": 1, "replicas_max": 1},
            {"name": "recorder", "replicas_min": 1, "replicas_max": 1},
        ],
        "nodes": [
            {
                "name": name,
                "role": role,
                "body": body,
                "firing": "AllOf(batch)" if name == "inner-step" else "Quorum(answer)" if name == "merge" else "AllOf",
                "mode": "free-running" if name == "inner-step" else "normal",
                "free_running": name == "inner-step",
                "blocked_by": [],
            }
            for name, role, body in nodes
        ],
        "edges": [
            {
                "source": source,
                "target": target,
                "policy": policy,
                "capacity": 2 if policy == "Queue" else None,
                "key": key,
                "initial": 0,
            }
            for source, target, policy, key in edges
        ],
        "placement": {},
    }


CONFIGURATION = """\
[run]
learners = 4
seed = 7
tokens = 4100000

[program]
fragments = 8
interval = 24
overlap = 2

[task]
layers = 2
width = 64
"""


def build(
    folder: Path,
    *,
    program: str = "decoupled-diloco",
    learners: int = 4,
    fragments: int = 8,
    steps: int = 400,
    step_seconds: float = 0.025,
    delay_seconds: float = 0.009,
    seed: int = 1,
    away: int | None = None,
) -> Path:
    """Write every file of a run folder that the report reads, and return the folder."""
    run = Invention(learners, fragments, steps, step_seconds, delay_seconds, seed, away)
    run.step()
    run.merge()
    evaluations, reports = run.evaluations(), run.reports()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "summary.json", run.summary(program, evaluations))
    write_json(folder / "graph.json", graph_of(program))
    write_json(folder / "trace.json", {"traceEvents": list(as_perfetto(sorted(run.spans, key=lambda s: s.ended)))})
    write_lines(folder / "metrics.jsonl", reports)
    write_lines(folder / "evaluations.jsonl", evaluations)
    write_lines(folder / "merges.jsonl", run.merges)
    (folder / "config.toml").write_text(CONFIGURATION)
    final = folder / "snapshots" / "final"
    final.mkdir(parents=True, exist_ok=True)
    save_file({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}, final / "model.safetensors")
    return folder


def write_json(path: Path, value: Any) -> None:
    """One JSON value as a file."""
    path.write_text(json.dumps(value))


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """One JSON value a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
