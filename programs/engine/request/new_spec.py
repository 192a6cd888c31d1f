"""The spec of a run as its command makes it from a request.

Apart from `spec`, which daemons and hosts read: they know of a request only what is written there.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from isthmus.ops.step_tokens import AtMost, PresentStepTokens
from isthmus.programs.engine.recorder.graph_parts import roster_counts
from isthmus.programs.engine.recorder.roles import least_replicas
from isthmus.programs.engine.recorder.run_references import OF_RUN
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.reference import file_of
from isthmus.programs.engine.request.spec import Here, file_digest, file_in
from isthmus.programs.loop_task import LoopTask
from isthmus.programs.program_graph import EVALUATOR, regions_in
from isthmus.programs.task import OwnTask
from isthmus.runtime.graph.plans import roles_of_edges
from isthmus.runtime.graph.template import Node, Reference
from isthmus.runtime.ids import LEARNER

if TYPE_CHECKING:
    from isthmus.programs.engine.request.request import Request


def of(
    request: Request,
    *,
    zero_ns: int,
    cpu_seconds: float,
    transport: str = "zmq",
    elastic: Sequence[Sequence[int]] = (),
) -> dict[str, Any]:
    """A request's spec as data, for a run on this machine alone; `elastic` as in Spec."""
    job, processes = request.job, request.run.processes
    counts = roster_counts(request.graph, request.run.learners)
    most = {role.name: role.replicas_max for role in request.graph.roles}
    return {
        "run": f"{request.run_dir.name}-{secrets.token_hex(4)}",
        "fingerprint": request.fingerprint,
        "roles": counts,
        "most": {"learner": min(job.slots_max, most["learner"])} if "learner" in counts else {},
        "least": {role: count for role, count in least_replicas(request.graph).items() if role in counts},
        "computing": list(_computing(request)),
        "zero_ns": zero_ns,
        "cpu_seconds": cpu_seconds,
        "tokens_of_step": [tokens] if isinstance(tokens := request.task.tokens_most, int) else list(tokens),
        "settings": msgspec.to_builtins(msgspec.structs.replace(request.run, argv=tuple(sys.argv))),
        "transport": transport,
        "elastic": [list(sizes) for sizes in elastic],
        "regions": regions_in(request.graph),
        "edges": {name: list(roles) for name, roles in roles_of_edges(request.graph).items()},
        "program_file": _program_file(job.program),
        "data": request.data_figures(),
        "here": asdict(Here("127.0.0.1", counts.get("learner", 0) + sum(processes) - len(processes))),
        "job": {
            "program": job.program,
            "task": job.task.text,
            "layout": [
                [tensor.name, list(tensor.shape), tensor.dtype, tensor.merge, tensor.is_stacked, tensor.level]
                for tensor in job.layout
            ],
            "tokens_per_batch": job.tokens_per_batch,
            "settings": dict(job.settings),
            "tokens_by_slot": list(job.tokens_by_slot),
            "tokens_at_most": job.tokens_at_most,
            "has_gradients": job.has_gradients,
            "frozen": [list(each) for each in job.frozen],
            "modules": list(job.modules),
            "routed_by": job.routed_by,
            "evaluations": job.evaluations,
            "step_tokens_before": [[each.lives, _tokens_as_data(each.tokens)] for each in job.step_tokens_before],
        },
    }


def _tokens_as_data(tokens: PresentStepTokens) -> Any:
    return {"at_most": tokens.tokens} if isinstance(tokens, AtMost) else tokens


def _program_file(program: str) -> str:
    """The digest of the file that a program names, if its builder is defined there: then the fingerprint of the graph
    is another one whenever the file is, so that it can be refused before it is imported."""
    file = file_in(program)
    return file_digest(file) if file is not None and file_of(Program(program).builder()) == str(file) else ""


def _computing(request: Request) -> tuple[str, ...]:
    """The roles with a node that imports something: the task; of a script, those that it computes for."""
    roles, task = {node.role for node in request.graph.nodes if _imports(node)}, request.task
    if isinstance(task, LoopTask):
        roles &= {LEARNER, EVALUATOR} if task.evaluates else {LEARNER}
    return tuple(sorted(roles))


def forks(request: Request) -> bool:
    """Whether hosts can be forked from the process that has prepared a run: of a task in jax. What another framework
    has done by then, as to start a device, is not known here; and hosts of a script are processes of that."""
    return not isinstance(request.task, OwnTask) and bool(_computing(request))


def _imports(node: Node) -> bool:
    arguments = [*node.arguments, *node.keywords.values()]
    return any(isinstance(value, Reference) and value not in OF_RUN for value in arguments)
