"""The task of a run whose learners are processes of a user's script, which makes the steps itself (`isthmus.island`).

Nothing of the model is code here: names, shapes, dtypes and rules of the leaves, and the tokens of a step, are data
that the script's first step tells. A request asks for them (`completed`): the script is run as far as that step, in a
process that ends there. So everything about a run is known, and every fault is found, before anything is started; and
daemons, syncers and recorders need neither the script nor its framework.

A batch is the permission to make one step: the position of it in its slot.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, final

import numpy as np

from isthmus.ops.data.batches import At, Tokens
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.island.contract import Evaluating, SoleLearning
from isthmus.ops.island.life import LearnerLife, Tensors
from isthmus.programs.task import ModelLeaf, OwnTask
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system import rank_processes
from isthmus.runtime.system.processes import kill_session

LOOP: Final = "isthmus.programs.loop_task:loop"
"""The reference by which hosts find the task; its keywords are those of `loop`."""
ISLAND: Final = "ISTHMUS_ISLAND"
"""The variable of the environment from which a script's process knows what it is, as JSON: the fields of a `LoopLife`,
or {"asks": the descriptor for the answer}."""
STEP_TOKENS_MAX: Final = 1 << 40
"""For hosts, which take what the script says; what others accept of it the request has fixed."""
OUTPUT_BYTES_MAX: Final = 1 << 14
"""Of the script's output, from its end, in which the reason of its failure is looked for."""


class LoopLife(NamedTuple):
    """One life of a slot: the run folder, the learner as 'learner/0', its incarnation, and its daemon's endpoint."""

    run: str
    replica: str
    incarnation: int
    daemon: str


class ModelFound(NamedTuple):
    """What a script has told: the leaves of its model, the rules of `merge`, the tokens of its first step and the most
    of any, the least bytes of a learner, whether it evaluates, and the digests of frozen leaves."""

    leaves: tuple[ModelLeaf, ...]
    merge: tuple[tuple[str, str], ...]
    tokens: int
    tokens_most: int
    learner_bytes: int
    evaluates: bool = False
    frozen: Digests = ()

    def answer(self) -> dict[str, Any]:
        """The same as JSON."""
        return {**self._asdict(), "leaves": [list(leaf) for leaf in self.leaves]}

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> ModelFound:
        """What an answer says."""
        leaves = tuple(ModelLeaf(name, tuple(shape), *rest) for name, shape, *rest in answer["leaves"])
        merge = tuple((pattern, kind) for pattern, kind in answer["merge"])
        frozen = tuple((name, digest) for name, digest in answer["frozen"])
        tokens = answer["tokens"], answer["tokens_most"]
        return cls(leaves, merge, *tokens, answer["learner_bytes"], answer["evaluates"], frozen)


@final
@dataclass(frozen=True, slots=True)
class LoopScript:
    """A script, its arguments, the folder in which it runs, and in how many ranks each island does."""

    script: str
    arguments: tuple[str, ...]
    folder: str
    ranks: int = 1

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        command = [sys.executable, self.script, *self.arguments]
        return command if self.ranks == 1 else rank_processes.command_of(self.ranks, command)


@final
@dataclass(frozen=True, slots=True)
class LoopTask(OwnTask):
    """The task of a script; `found` is what it has told.

    In a process of the script, `make` makes a learner, and `judge` evaluates there.
    """

    script: LoopScript
    _: KW_ONLY
    found: ModelFound | None = None
    make: Callable[[Sequence[Fragment], LearnerLife, float], SoleLearning] | None = None
    judge: Evaluating | None = None

    @property
    def evaluates(self) -> bool:
        """Whether the script evaluates; known of one that was asked."""
        return self.found is not None and self.found.evaluates

    def completed(self) -> LoopTask:
        """This task, with the answer of the script; ConfigError with what it complains of, or if it makes no step."""
        found = asked_of(self.script)
        tokens = Tokens(lambda batch: found.tokens, found.tokens_most)
        return replace(self, found=found, merge=found.merge, tokens_per_batch=tokens)

    def batch(self, at: At) -> dict[str, Any]:
        """The permission to make the step of this position."""
        return {"position": np.asarray(at.position, np.int64)}

    def evaluation_batches(self, seed: int) -> Iterator[Any]:
        yield from ()

    def prepare(self) -> None:
        """No-op: each process of a script imports what it needs."""

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> SoleLearning:
        assert self.make is not None
        return self.make(fragments, life, alpha)

    def evaluator(self, seed: int) -> Evaluating:
        return self.judge or Unevaluated()

    def leaves(self, seed: int) -> list[ModelLeaf]:
        return list((self.found or asked_of(self.script)).leaves)

    def frozen(self, seed: int) -> Digests:
        return (self.found or asked_of(self.script)).frozen

    def check_first_step(self, batch: Any, seed: int, *, computes: bool) -> tuple[Fault, ...]:
        """Nothing: the script has made its first step."""
        return ()

    def learner_bytes(self) -> int:
        return 0 if self.found is None else self.found.learner_bytes

    def digests(self, seed: int) -> Mapping[str, Any]:
        return {"script": [self.script.script, *self.script.arguments]}

    def model(self, tensors: Tensors, seed: int) -> Mapping[str, Any]:
        """The merged leaves by name, in NumPy arrays."""
        return dict(tensors)


@final
class Unevaluated:
    """The evaluation of a task that has none."""

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """No scalars."""
        return {}

    def assemble(self, fragments: Sequence[Fragment], values: Mapping[int, Any]) -> Tensors:
        """No tensors: nothing reads them."""
        return {}


def loop(script: str, arguments: Sequence[str], folder: str, ranks: int = 1) -> LoopTask:
    """The task of a script."""
    tokens = Tokens(lambda batch: 1, STEP_TOKENS_MAX)
    return LoopTask(LoopScript(script, tuple(arguments), folder, ranks), tokens_per_batch=tokens)


@cache
def asked_of(script: LoopScript) -> ModelFound:
    """What a script tells of its model. ConfigError if it does not come to its first step."""
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            script.command,
            cwd=script.folder,
            env={**os.environ, ISLAND: json.dumps({"asks": answer.fileno()})},
            pass_fds=(answer.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _await_end(process.pid)
        finally:
            # It has ended, unless this process was interrupted, and is not reaped: its number is its own.
            os.kill(process.pid, signal.SIGKILL)
            _await_end(process.pid)
            kill_session(process.pid)  # What it has started, such as workers of a DataLoader.
            status = process.wait()
        answer.seek(0)
        text = answer.read()
        if not text:
            doing = f"Running {Path(script.script).name} to its first step"
            raise ConfigError(doing, "a step by island.step(...)", _end_of(output, status), _do(script))
    content = json.loads(text)
    if "faults" in content:
        raise ConfigError.of([Fault(*fault) for fault in content["faults"]])
    return ModelFound.read(content)


def _await_end(pid: int) -> None:
    """Wait for the end of a child, which is not reaped."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _end_of(output: BinaryIO, status: int) -> str:
    """How a script has ended, in words."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - OUTPUT_BYTES_MAX))
    lines = output.read().decode(errors="replace").strip().splitlines()
    how = "its end" if status == 0 else f"exit status {status}" if status > 0 else f"signal {-status}"
    return f"{how}{f', with {lines[-1].strip()!r} as its last line' if lines else ''}"


def _do(script: LoopScript) -> str:
    return (
        "Write `with isthmus.island(model, optimizer) as island:` around the loop, and after each optimizer.step() "
        f"island.step(loss, tokens=n); or look at {' '.join(script.command)}"
    )
