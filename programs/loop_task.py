"""The task of a run whose learners are processes of a user's script, which makes the steps itself (`isthmus.island`).

Nothing of the model is code here: names, shapes, dtypes and rules of the leaves, and the tokens of a step, are data
that the script's first step tells. A request asks for them (`completed`): the script is run as far as that step, in a
process that ends there; or, where loops start themselves, the first one has told them, and they are in a file. So
everything about a run is known, and every fault is found, before anything is started; and daemons, syncers and
recorders need neither the script nor its framework.

A batch is the permission to make one step: the position of it in its slot.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, NamedTuple, Protocol, Self, TypeAlias, final

import msgspec
import numpy as np

from isthmus.ops.data.batches import At, Tokens
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.exchange.merge_rules import FROZEN, is_merged
from isthmus.ops.island.contract import Evaluating, SoleLearning, Unevaluated
from isthmus.ops.island.life import LearnerLife, Tensors
from isthmus.programs.job import RunSlots, TensorSpec
from isthmus.programs.loop_script import FILE, ISLAND, MODULE, PROGRAM, LoopAhead, LoopScript
from isthmus.programs.task import KINDS, ModelLeaf, OwnTask
from isthmus.runtime.errors import ConfigError, Fault, shortened
from isthmus.runtime.system.processes import status_name
from isthmus.runtime.system.refusals import remedy
from isthmus.runtime.system.user_files import is_users

if TYPE_CHECKING:
    from isthmus.ops.learner.boundary import Boundary, Companion
    from isthmus.ops.learner.own_evaluation import OwnJudging

STEP_TOKENS_MAX: Final = 1 << 40
"""For hosts, which take what the script says; what others accept of it the request has fixed."""
LEAVES_MAX: Final = 1 << 16
"""Of a model that another machine tells of."""
RULES_MAX: Final = 1 << 10
"""Of its merge."""
AXES_MAX: Final = 64
"""Of a leaf; NumPy has no more."""
NAME_LENGTH_MAX: Final = 1 << 10
"""Of a leaf, of a pattern, and of a digest."""
OUTPUT_BYTES_MAX: Final = 1 << 14
"""Of the script's output, from its end, in which the reason of its failure is looked for."""


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
_Shape: TypeAlias = Annotated[list[_Count], msgspec.Meta(max_length=AXES_MAX)]
_Leaf: TypeAlias = tuple[_Name, _Shape, _Name, str | None, bool]


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
    def checked(cls, answer: Mapping[str, Any]) -> ModelFound:
        """What the answer of another machine says; KeyError, TypeError or ValueError for one that no loop gives."""
        told = msgspec.convert(dict(answer), _Told)
        kinds = {kind for _, _, _, kind, _ in told.leaves if kind is not None} | {kind for _, kind in told.merge}
        if odd := sorted(kinds.difference(KINDS)):
            raise ValueError(f"leaves that are {odd[0][:NAME_LENGTH_MAX]!r}")
        names = [*(name for name, *_ in told.leaves), *(pattern for pattern, _ in told.merge)]
        if odd := [name for name in names if not name.isprintable()]:
            raise ValueError(f"a leaf or a pattern {odd[0]!r}, which is not printable")
        if [name for name, _ in told.frozen] != sorted(name for name, _, _, kind, _ in told.leaves if kind == FROZEN):
            raise ValueError("digests of other leaves than the frozen ones")
        return cls.read(answer)

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> ModelFound:
        """What an answer says."""
        leaves = tuple(ModelLeaf(name, tuple(shape), *rest) for name, shape, *rest in answer["leaves"])
        merge = tuple((pattern, kind) for pattern, kind in answer["merge"])
        frozen = tuple((name, digest) for name, digest in answer["frozen"])
        tokens = answer["tokens"], answer["tokens_most"]
        return cls(leaves, merge, *tokens, answer["learner_bytes"], answer["evaluates"], frozen)


class _Told(msgspec.Struct, forbid_unknown_fields=True):
    """The types of a ModelFound's answer."""

    leaves: Annotated[list[_Leaf], msgspec.Meta(max_length=LEAVES_MAX)]
    merge: Annotated[list[tuple[_Name, str]], msgspec.Meta(max_length=RULES_MAX)]
    tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    tokens_most: _Count
    learner_bytes: _Count
    evaluates: bool
    frozen: Annotated[list[tuple[_Name, _Name]], msgspec.Meta(max_length=LEAVES_MAX)]


def leaf_rows(leaves: Sequence[ModelLeaf]) -> list[list[Any]]:
    """Name, shape, dtype and kind of each merged leaf, as JSON has them."""
    return [[leaf.name, list(leaf.shape), leaf.dtype, leaf.kind] for leaf in leaves if is_merged(leaf.kind)]


def layout_rows(layout: Sequence[TensorSpec]) -> list[list[Any]]:
    """The same of a run's layout."""
    return [[tensor.name, list(tensor.shape), tensor.dtype, tensor.merge] for tensor in layout]


def unlike(here: Sequence[Any], there: Sequence[Any]) -> Fault | None:
    """How the model `here` is another one than that of the run `there`; None if it is not."""
    pairs = zip_longest(map(list, here), map(list, there))
    one, other = next(((one, other) for one, other in pairs if one != other), (None, None))
    if one == other:
        return None
    do = "Make the same model in every process: it must not depend on the slot, or on random numbers."
    return Fault("Joining with this model", f"the run's leaf {other}", f"{one}", do)


@final
@dataclass(frozen=True, slots=True)
class ToldModel:
    """The model that a loop which has started itself has told of, in a file."""

    file: str

    def found(self) -> ModelFound:
        """What it has told; ConfigError if the file cannot be read."""
        try:
            return ModelFound.checked(json.loads(Path(self.file).read_text()))
        except (OSError, LookupError, TypeError, ValueError) as error:
            do = "Begin the run anew, by `isthmus daemon --run FILE`: the next loop that joins tells it again."
            doing = f"Reading {self.file}"
            raise ConfigError(
                doing, "the model that the first loop has told of", shortened(str(error), 300), remedy(error, do)
            ) from None

    @property
    def names(self) -> list[str]:
        """Nothing by which tasks of one model differ."""
        return []


class LoopModel(Protocol):
    """What a framework brings of the model in a user's loop. Faults of the user's are ConfigErrors."""

    step_call: str
    """How the loop calls `island.step`, in words."""
    merge: tuple[tuple[str, str], ...]
    """The rules of its leaves."""
    ranks: Any
    """This process among those of its island: a `SoleRank`, or `torch_ranks.Ranks`."""

    def host(self, make: Callable[[], Any], *, make_learner: Callable[..., Any], judge: Evaluating | None) -> Any:
        """The host of this process, which `make` makes where it is the one that speaks."""

    def leaves(self) -> list[ModelLeaf]:
        """All leaves, local ones, too."""

    def learner_bytes(self) -> int:
        """The least bytes of a learner: its state, and a gradient of the merged leaves."""

    def frozen(self) -> Digests:
        """The digests of the frozen leaves."""

    @property
    def state(self) -> Any:
        """The model as the loop has it."""

    def watch(self) -> None:
        """Notice from now on what the loop does with the leaves that take part: its `with` begins."""

    def unwatch(self) -> None:
        """Notice it no more."""

    def after(self, stepped: Any, loss: Any) -> Any:
        """Take what the loop passes `island.step`; returns the loss. ConfigError if the leaves that take part, or what
        trains them, are not those that were announced, or if the loss is not one number."""

    def stepped(self) -> Any:
        """What `island.step` returns."""

    def check_last(self) -> None:
        """ConfigError if frozen leaves have other values after the last step of a run."""

    def check_end(self) -> None:
        """ConfigError if the loop has ended with other leaves than those of its last `island.step`."""

    def fault_of_kept(self, kept: Sequence[Any]) -> str:
        """Why this cannot be kept beside the local leaves; empty if it can."""

    def read_later(self, scalar: Any) -> Any:
        """A scalar of the loop's as a number; where a device may still compute it, what NumPy will wait for, and
        `is_ready()`."""

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> Any:
        """The loop's learner: a `SoleLearning` and `LoopLearning`, with `progress` and `record(tokens, scalars)`."""

    def evaluator(self, evaluate: Callable[[Any], Any], *, is_beside: bool) -> Evaluating:
        """The evaluation by a function of the script's; one that `is_beside` a learner leaves its leaves alone."""


@final
@dataclass(frozen=True, slots=True)
class LoopTask(OwnTask):
    """The task of loops from this `origin`; `found` is what one has told.

    In a process of the script, `make` makes a learner, and `judge` evaluates there; `own_judge` does beside a learner;
    `first_batch` returns the digest of the first batch (`ops.learner.first_data`).
    """

    origin: LoopScript | ToldModel
    _: KW_ONLY
    found: ModelFound | None = None
    make: Callable[[Sequence[Fragment], LearnerLife, float], SoleLearning] | None = None
    judge: Evaluating | None = None
    own_judge: OwnJudging | None = None
    first_batch: Callable[[], int] = lambda: 0

    @property
    def evaluates(self) -> bool:
        """Whether the script evaluates; known of one that was asked."""
        return self.found is not None and self.found.evaluates

    def completed(self, run: RunSlots) -> LoopTask:
        """This task, with the answer of the script; ConfigError with what it complains of, or if it makes no step."""
        # A script that is asked for a run of so many learners may be the first of them.
        origin = self.origin
        found = _ASKING.get()(origin, run) if isinstance(origin, LoopScript) else origin.found()
        tokens = Tokens(lambda batch: found.tokens, found.tokens_most)
        return replace(self, found=found, merge=found.merge, tokens_per_batch=tokens)

    def batch(self, at: At) -> dict[str, Any]:
        """The permission to make the step of this position."""
        return {"position": np.asarray(at.position, np.int64)}

    def evaluation_batches(self, seed: int, path: int = 0) -> Iterator[Any]:
        yield from ()

    def prepare(self) -> None:
        """No-op: each process of a script imports what it needs."""

    def learner(self, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float) -> SoleLearning:
        assert self.make is not None
        return self.make(fragments, life, alpha)

    def companions(self, boundary: Boundary) -> Iterator[Companion]:
        """The companions of the learner in a process of the script."""
        from isthmus.ops.learner.first_data import FirstData
        from isthmus.ops.learner.last_model import LastModel
        from isthmus.ops.learner.own_evaluation import OwnEvaluation

        yield FirstData(boundary, self.first_batch)
        yield LastModel.of(boundary)
        if self.own_judge is not None:
            yield OwnEvaluation(self.own_judge, boundary)
        yield from OwnTask.companions(self, boundary)  # Without arguments, `super` finds no class with slots.

    def evaluator(self, seed: int) -> Evaluating:
        return self.judge or Unevaluated()

    def _told(self) -> ModelFound:
        """What it tells, asked by itself; ConfigError if it does not come to its first step."""
        return asked_of(self.origin) if isinstance(self.origin, LoopScript) else self.origin.found()

    def leaves(self, seed: int) -> list[ModelLeaf]:
        return list((self.found or self._told()).leaves)

    def frozen(self, seed: int) -> Digests:
        return (self.found or self._told()).frozen

    def check_first_step(self, batch: Any, seed: int, *, computes: bool) -> tuple[Fault, ...]:
        """Nothing: the script has made its first step."""
        return ()

    def learner_bytes(self) -> int:
        return 0 if self.found is None else self.found.learner_bytes

    def digests(self, seed: int) -> Mapping[str, Any]:
        return {"origin": self.origin.names}

    def model(self, tensors: Tensors, seed: int) -> Mapping[str, Any]:
        """The merged leaves by name, in NumPy arrays."""
        return dict(tensors)


def loop(
    script: str, arguments: Sequence[str], folder: str, ranks: int = 1, form: str = FILE, python: str = ""
) -> LoopTask:
    """The task of a script (`LoopScript`)."""
    tokens = Tokens(lambda batch: 1, STEP_TOKENS_MAX)
    return LoopTask(LoopScript(script, tuple(arguments), folder, ranks, form, python), tokens_per_batch=tokens)


def open_loop(model: str) -> LoopTask:
    """The task of loops that start themselves; `model` is the file with what the first one has told."""
    return LoopTask(ToldModel(model), tokens_per_batch=Tokens(lambda batch: 1, STEP_TOKENS_MAX))


@cache
def asked_of(script: LoopScript) -> ModelFound:
    """What a script tells of its model. ConfigError if it does not come to its first step."""
    with AskedScript(script) as asked:
        wait_for_first_step(asked.watch, script)
        asked.wait()
        return asked.told()


@final
class AskedScript:
    """A process of a script that is asked for its model, and ends with its first step; at its end, within the `with`,
    it is gone with what it has started, as workers of a DataLoader."""

    def __init__(self, script: LoopScript, variables: Mapping[str, str] | None = None) -> None:
        """Start it, with these in place of this process's variables; OSError if there is no room for it."""
        from isthmus.runtime.system.children import ChildProcess

        self.script = script
        with ExitStack() as opened:
            self._answer = opened.enter_context(tempfile.TemporaryFile())
            self._output = opened.enter_context(tempfile.TemporaryFile())
            ahead = json.dumps(LoopAhead(self._answer.fileno())._asdict())
            process = subprocess.Popen(
                script.command,
                cwd=script.folder,
                env={**(os.environ if variables is None else variables), ISLAND: ahead},
                pass_fds=(self._answer.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            process.returncode = 0  # It is reaped below, and not by subprocess.
            self._child = ChildProcess(process.pid)
            opened.callback(self._child.end)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def watch(self) -> int:
        """A descriptor that can be read once it has ended."""
        return self._child.watch

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, after so many seconds at most."""
        return self._child.wait(seconds)

    def told(self) -> ModelFound:
        """What it has told, which has ended. ConfigError if that is no model."""
        self._child.end()
        return told_in(self._answer, self._output, self._child.status or 0, self.script)

    def last_lines(self) -> list[str]:
        """The end of what it has written."""
        return _last_lines(self._output)

    def close(self) -> None:
        """End it, with what it has started. Idempotent."""
        self._opened.close()


def wait_for_first_step(descriptor: int, script: LoopScript) -> None:
    """Wait until a descriptor is readable, as it is once a script has come to its first step, or ended; say on standard
    error, once, that it takes long."""
    from isthmus.runtime.supervision.user_code import FIRST_STEP

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(FIRST_STEP / 1e6):
        name = script.name
        sys.stderr.write(
            f"isthmus: {name} has not come to its first island.step(...) for {FIRST_STEP / 1e9:.0f} s, and is waited "
            "for: it has to call that after each step of the optimizer.\n"
        )
        sys.stderr.flush()
        poll.poll()


class ScriptEndError(ConfigError):
    """A script has ended without a step; `how`, without what it has printed."""

    how = ""


class Asking(Protocol):
    """How a script is asked for its model."""

    def __call__(self, script: LoopScript, run: RunSlots) -> ModelFound:
        """What it tells, for a run of so many learners; ConfigError if it does not come to its first step."""


def ask_by(asking: Asking) -> None:
    """Ask scripts in this way from now on, in this process, for the requests of runs."""
    _ASKING.set(asking)


@contextmanager
def asked_by(asking: Asking) -> Iterator[None]:
    """Ask scripts in this way within the block."""
    token = _ASKING.set(asking)
    try:
        yield
    finally:
        _ASKING.reset(token)


def _ask_alone(script: LoopScript, run: RunSlots) -> ModelFound:
    return asked_of(script)


_ASKING: Final = ContextVar[Asking]("asking", default=_ask_alone)


def told_in(answer: BinaryIO, output: BinaryIO, status: int, script: LoopScript) -> ModelFound:
    """What a script has told in a file; ConfigError with what it complains of, or with the end of its output, and its
    exit status, if it has told nothing."""
    answer.seek(0)
    text = answer.read()
    if not text:
        doing, lines = f"Running {script.name} to its first step", _last_lines(output)
        error = ScriptEndError(doing, "a step by island.step(...)", _end_of(lines, status), _do(script, lines, status))
        error.how = _end_of([], status)
        raise error
    content = json.loads(text)
    if "faults" in content:
        raise ConfigError.of([Fault(*fault) for fault in content["faults"]])
    return ModelFound.read(content)


def _last_lines(output: BinaryIO) -> list[str]:
    """The end of what a script has written."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - OUTPUT_BYTES_MAX))
    return output.read().decode(errors="replace").strip().splitlines()


_TRACEBACK: Final = "Traceback (most recent call last):"
_IGNORED: Final = "Exception ignored in"
_PLACE: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+)')
_NOTE: Final = "For simplicity, JAX has removed its internal frames"
"""Begins what jax adds behind the message of an exception, below a line of dashes."""
_CAUSE_LENGTH_MAX: Final = 1000


class _Cause(NamedTuple):
    """The exception by which a script has ended: its text, and the last line outside of libraries where it was."""

    text: str
    place: str


def _cause_in(lines: list[str], status: int) -> _Cause | None:
    """The last exception in the output of a script, which has ended with that status; None if it has ended in order, or
    without a traceback. Those that Python ignores, as of a destructor, end nothing."""
    above = ["", *lines]
    begins = [at for at, line in enumerate(lines) if line == _TRACEBACK and not above[at].startswith(_IGNORED)]
    if status == 0 or not begins:
        return None
    trace = lines[begins[-1] + 1 :]
    trace = trace[: next((at for at, line in enumerate(trace) if line.startswith(_IGNORED)), len(trace))]
    begin = next((number for number, line in enumerate(trace) if line[:1].strip()), len(trace))
    text = trace[begin:]
    if noted := [number for number, line in enumerate(text) if line.startswith(_NOTE)]:
        text = text[: noted[0] - 1]
    places = [match for line in trace[:begin] if (match := _PLACE.match(line))]
    # The script may be run by another environment.
    users = [each for each in places if is_users(each["file"]) and "/site-packages/" not in each["file"]] or places
    place = f"{users[-1]['file']}:{users[-1]['line']}" if users else ""
    return _Cause(" ".join(" ".join(text).split()), place)


def _end_of(lines: list[str], status: int) -> str:
    """How a script has ended, in words."""
    how = "its end" if status == 0 else f"exit {status_name(status)}" if status > 0 else status_name(status)
    if cause := _cause_in(lines, status):
        text = shortened(cause.text, _CAUSE_LENGTH_MAX, "cut: run the script alone to read all")
        return f"{how}, by {text}{f' ({cause.place})' if cause.place else ''}"
    return f"{how}{f', with {lines[-1].strip()!r} as its last line' if lines else ''}"


_NO_MODULE: Final = re.compile(r"No module named '?([\w.]+)'?")
_NO_TOKENS: Final = re.compile(r"\bstep\(\) missing .*'tokens'")


def _do(script: LoopScript, lines: list[str], status: int) -> str:
    """What to do about a script that has ended without a step: of its last line, where that says the cause."""
    cause = _cause_in(lines, status)
    last = cause.text if cause else lines[-1] if lines else ""
    missing = _NO_MODULE.search(last)
    if missing and script.form == MODULE and f"{script.script}.".startswith(f"{missing[1]}."):
        return f"Check the name: it is looked for in {script.folder}, and where {script.interpreter} finds packages."
    if missing:
        whose = f"where {script.interpreter} finds it" if script.form != PROGRAM else "in its environment"
        return f"Install {missing[1]} {whose}, or name the interpreter of another environment with --python."
    if _NO_TOKENS.search(last):
        return "Say how many tokens, or samples, the step was on: island.step(loss, tokens=n)."
    if cause:
        return f"Correct what it raises; alone it is run by: {' '.join(script.command)}"
    return (
        "Write `with isthmus.island(model, optimizer) as island:` around the loop, and after each optimizer.step() "
        "island.step(loss, tokens=n); in jax `isthmus.island(state, merge=...)` and `state = island.step(state, "
        f"loss=loss, tokens=n)`; or look at {' '.join(script.command)}"
    )
