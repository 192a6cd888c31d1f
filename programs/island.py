"""`isthmus.island`: the user's own loop as a learner.

    with isthmus.island(model, optimizer) as island:
        for batch in loader:
            loss = ...; loss.backward(); optimizer.step(); optimizer.zero_grad()
            island.step(loss, tokens=n)

Decides what the loop's user sees: checks of what is passed, and the names on an island. The process of a script that
`isthmus train --loop` has started knows from its environment which life of which learner it is; where it is only asked
for its model, it ends at its first step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Self, TypeVar, final

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.loop_task import ISLAND, LoopLife, ModelFound
from isthmus.programs.task import METRICS_MAX, ModelLeaf
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import LEARNER, Replica

_MAKING: Final = "Making an island"
_STEPPING: Final = "island.step(loss, tokens=)"
TOKENS_MOST: Final = 8
"""By default no step may have more than so many times the tokens of the first one: no island may claim more."""
_LEAVING: Final = (signal.SIGTERM, signal.SIGHUP)

Item = TypeVar("Item")


def island(
    model: Any,
    optimizer: Any,
    *,
    merge: Mapping[str, str] | Sequence[tuple[str, str]] = (("**", "rda"),),
    tokens_most: int | None = None,
    evaluate: Callable[[Any], Any] | None = None,
) -> Island:
    """The learner of a run that is this process's loop, to be used in a `with`.

    `model` is a `torch.nn.Module` on one device, and `optimizer` one of its parameters. `merge` are the rules by which
    its leaves are merged, as of a task: patterns on names with `/` for `.`. `tokens_most` is the most tokens that a
    step can have, by default eight times those of the first one. `evaluate(model)` returns a loss, or numbers by name
    with a 'loss' among them: a process of its own runs the script as far as the `with`, and calls it with the module
    that has the values of the whole run; without it nothing is evaluated. ConfigError for anything else.
    """
    life = life_of(os.environ)
    rules = tuple(merge.items()) if isinstance(merge, Mapping) else tuple(merge)
    with answering(life):
        return Island(life, model, optimizer, rules, tokens_most, evaluate)


@final
class Island:
    """One island of a run, in the process of a user's loop; see `island`.

    At `with` the module is given the run's present model, and the optimizer what its slot has kept. Each `step` adopts
    what has been merged meanwhile, and never waits for another island. After `with` the module has the run's last model
    if the run is over.
    """

    def __init__(
        self,
        life: LoopLife | int,
        model: Any,
        optimizer: Any,
        merge: tuple[tuple[str, str], ...],
        tokens_most: int | None,
        evaluate: Any,
    ) -> None:
        """`life`: the life that this process is, or the descriptor for the answer where it is asked for its model."""
        self._torch = _torch_of(model)
        self._merge, self._tokens_most, self._evaluate = merge, tokens_most, evaluate
        if evaluate is not None and not callable(evaluate):
            do = "Pass a function of the module."
            raise ConfigError(_MAKING, "evaluate= a function", f"a {type(evaluate).__name__}", do)
        self._ranks = _rank_of(model, os.environ)
        self._model = _checked_model(self._torch, model, merge, self._ranks.access)
        self._places = [(tensors, name, self._model.merged[path]) for tensors, name, path in self._model.places()]
        self._moments = _checked_moments(self._torch, self._model, optimizer)
        if not self._ranks.is_same((self._leaves(), self._moments.forms())):
            do = "Make the same module in every rank, and an optimizer whose state lies as its parameters do."
            raise ConfigError(_MAKING, "one module and one optimizer in all ranks", "others in some of them", do)
        self._life = life
        self._host: Any = None
        self._learner: Any = None
        self._thread: int | None = None
        self._handlers: dict[int, Any] = {}
        self._more: dict[str, Any] = {}

    # -- in and out ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Join the run, and wait for its model. ConfigError, RunError if that is not possible."""
        if self._host is not None:
            do = "Write one `with` around all of the training."
            raise ConfigError("Entering the with of an island", "once in a process", "a second time", do)
        self._thread = threading.get_ident()
        if isinstance(self._life, int):  # It is asked for its model, which its first step completes.
            return self
        from isthmus.programs.engine.run.loop_host import LoopHost

        os.environ.pop(ISLAND, None)  # Processes that the loop starts are no islands.
        is_learner = Replica.parse(self._life.replica).role == LEARNER
        judge = None if is_learner else self._judge()
        made = {"make": self._make} if is_learner else {"judge": judge}
        make_host = partial(LoopHost, self._life, self._leaves(), in_forks=self._restore_handlers, **made)
        self._host = self._ranks.host(make_host, model=self._model, make_learner=self._make, judge=judge)
        if is_learner:
            self._handle_signals()
        self._host.begin()
        if not is_learner:
            _end()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the run: in order, or by the exception that has ended the loop."""
        self._thread = None
        if isinstance(self._life, int):
            if error is None:
                do = f"Call {_STEPPING} after each optimizer.step()."
                _answer(self._life, [Fault("Running the loop to its first step", "a step", "none", do)])
            return
        try:
            if error is None or (isinstance(error, SystemExit) and not error.code):
                self._ranks.settle()
                self._host.leave()
            else:
                self._host.fail(error)
        finally:
            self._restore_handlers()

    def _make(self, fragments: Sequence[Fragment], life: LearnerLife, alpha: float) -> Any:
        """The learner of this loop, which inner-step asks for as it opens."""
        from isthmus.ops.island.torch_loop import LoopLearner

        learner = LoopLearner(self._model, self._moments, fragments, life=life, alpha=alpha)
        self._learner = self._ranks.learner(learner, fragments, life, alpha)
        return self._learner

    def _judge(self) -> Any:
        """What evaluates in this process."""
        from isthmus.ops.island.torch_loop import LoopEvaluation

        judge = None if self._evaluate is None else LoopEvaluation(self._model, self._evaluate)
        return self._ranks.judge(judge)

    def _handle_signals(self) -> None:
        """Let a notice make the loop leave at its next boundary; in a thread that may not, signals stay as they are."""
        if threading.current_thread() is threading.main_thread():
            for number in _LEAVING:
                self._handlers[number] = signal.signal(number, self._on_notice)

    def _restore_handlers(self) -> None:
        """Also in a process that is forked from this one, in which there is no loop to leave."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _on_notice(self, number: int, frame: FrameType | None) -> None:
        self._host.request_leave()

    # -- the loop ------------------------------------------------------------------------------------------------------

    def step(self, loss: Any, *, tokens: Any) -> None:
        """Count a step that the loop has made: adopt what was merged meanwhile, and answer pulls.

        `loss` is a number or a scalar tensor, `tokens` those on which this step has trained, also an integer tensor.
        Where `is_over`, it does nothing. ConfigError for other arguments, in another thread, or outside of the `with`.
        """
        with answering(self._life):
            self._check_thread(f"Calling {_STEPPING}")
            self._ranks.settle()
            self._check_leaves()
            count = _tokens_of(tokens)
            _check_loss(loss)
            if isinstance(self._life, int):
                found = self._found(self._ranks.total(count))
                _answer(self._life, found) if self._ranks.is_leader else _end()
        if self._host.is_over:
            return
        count, loss = self._ranks.count(count, loss)
        scalars, self._more = {"loss": loss, **self._more}, {}
        self._learner.record(count, scalars)
        self._host.go_on()

    def metrics(self, **scalars: Any) -> None:
        """Report numbers beside the loss of the next `step`."""
        if len(self._more | scalars) > METRICS_MAX:
            do = "Report those that are to be plotted."
            raise ConfigError("island.metrics()", f"at most {METRICS_MAX} scalars", str(len(scalars)), do)
        self._more |= scalars

    def keep(self, *kept: Any) -> None:
        """Keep schedulers, scalers and whatever else has `state_dict` and `load_state_dict`, with the optimizer's
        state: it is given what the life of this slot before has kept. Once, inside of the `with`, before the loop."""
        from isthmus.ops.island.torch_loop import fault_of_kept

        doing = "island.keep()"
        with answering(self._life):
            self._check_thread(doing)
            if fault := fault_of_kept(kept, self._moments.optimizer):
                do = "Pass what torch.load(..., weights_only=True) can read: tensors, numbers, texts, lists and dicts."
                raise ConfigError(doing, "things with state_dict and load_state_dict", fault, do)
        if self._learner is not None:
            try:
                self._learner.keep(kept)
            except ValueError as error:
                do = "Pass as many, in the same order, in every life."
                raise ConfigError(doing, f"as many as before, not {len(kept)}", str(error), do) from error

    def __call__(self, batches: Iterable[Item]) -> Iterator[Item]:
        """The batches, until no further step is to be made."""
        for batch in batches:
            if self.is_over:
                return
            yield batch

    @property
    def is_over(self) -> bool:
        """Whether no further step is to be made: the tokens are trained, or this island is to leave."""
        return self._host is not None and bool(self._host.is_over)

    @property
    def progress(self) -> float:
        """The share in [0, 1] of the run's token budget that is trained: what a schedule follows."""
        return 0.0 if self._learner is None else min(1.0, float(self._learner.progress))

    @property
    def slot(self) -> int:
        """The number of this island among `slots`."""
        return 0 if self._host is None else int(self._host.place.slot)

    @property
    def slots(self) -> int:
        """The most islands that the run may ever have."""
        return 1 if self._host is None else int(self._host.place.slots)

    @property
    def seed(self) -> int:
        """A seed for samplers and generators, another one in every slot; 63 bits."""
        if self._host is None:
            return 0
        from isthmus.ops.data.batches import At

        place = self._host.place
        return int(At(place.seed, place.slot, 0).rng().integers(1 << 63))

    @property
    def position(self) -> int:
        """The steps of this slot that are merged, or were made in this life: where to go on in the data."""
        return 0 if self._host is None else int(self._host.position)

    def _check_thread(self, doing: str) -> None:
        if self._thread is None:
            do = "Call it in the loop inside of `with isthmus.island(...) as island:`."
            raise ConfigError(doing, "a call inside of the with", "one outside of it", do)
        if self._thread != threading.get_ident():
            do = "Call it in the thread that has entered the with."
            raise ConfigError(doing, "one thread", "another one", do)

    def _check_leaves(self) -> None:
        """ConfigError if the module has another tensor where it had a merged leaf: it would train one for itself."""
        for tensors, name, leaf in self._places:
            if tensors.get(name) is not leaf:
                do = "Change the module before isthmus.island(...), and afterwards only the values of its tensors."
                path = self._model.paths[id(leaf)]
                raise ConfigError(f"Calling {_STEPPING}", f"the module's own {path!r}, as it was", "another tensor", do)

    # -- its model -----------------------------------------------------------------------------------------------------

    def _leaves(self) -> list[ModelLeaf]:
        dtype_name, model = self._torch.dtype_name, self._model
        return [
            ModelLeaf(path, tuple(leaf.shape), dtype_name(leaf), model.kinds[path])
            for path, leaf in model.leaves.items()
        ]

    def _found(self, tokens: int) -> ModelFound:
        """What this process tells of its model, after a first step of so many tokens; ConfigError if it has none."""
        most = TOKENS_MOST * tokens if self._tokens_most is None else self._tokens_most
        if tokens < 1:
            do = "Pass the tokens, or samples, that the step has trained on."
            raise ConfigError(f"Calling {_STEPPING}", "at least 1 token in the first step", str(tokens), do)
        if most < tokens:
            do = "Pass the most tokens that a step can have."
            raise ConfigError(_MAKING, f"tokens_most= of at least {tokens}, those of the first step", str(most), do)
        size_of = self._model.access.size_bytes
        sizes = [size_of(leaf) * (1 + leaf.requires_grad) for leaf in self._model.leaves.values()]
        size_bytes = self._ranks.total(int(sum(sizes) + self._moments.size_bytes))
        evaluates, frozen = self._evaluate is not None, self._model.digests()
        return ModelFound(tuple(self._leaves()), self._merge, tokens, most, size_bytes, evaluates, frozen)


def _answer(descriptor: int, answer: ModelFound | Sequence[Fault]) -> NoReturn:
    """Tell what was asked, and end this process."""
    content = answer.answer() if isinstance(answer, ModelFound) else {"faults": [list(each) for each in answer]}
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
    _end()


def _end() -> NoReturn:
    """End a process of the script that trains nothing: what follows is not for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def answering(life: LoopLife | int) -> Iterator[None]:
    """Where this process is asked for its model, answer with the faults of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        if isinstance(life, int) and _place(os.environ).rank == 0:
            _answer(life, error.faults)
        raise


def life_of(environment: Mapping[str, str]) -> LoopLife | int:
    """What this process is; ConfigError where nothing has started it as an island."""
    text = environment.get(ISLAND)
    if text is None:
        do = "Start the script by: isthmus train --loop train.py --learners 2"
        raise ConfigError(_MAKING, "a process that `isthmus train --loop` has started", "another one", do)
    fields = json.loads(text)
    return int(fields["asks"]) if "asks" in fields else LoopLife(**fields)


def _torch_of(model: Any) -> Any:
    """Our modules for PyTorch, where the model is PyTorch's."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from isthmus.ops.island import torch_model

        return torch_model
    do = "Pass the module itself, before or after torch.compile."
    raise ConfigError(_MAKING, "a torch.nn.Module", f"a {type(model).__name__}", do)


class _Place(NamedTuple):
    """This process among those of its script."""

    rank: int
    size: int
    is_initialized: bool


def _place(environment: Mapping[str, str]) -> _Place:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _Place(distributed.get_rank(), distributed.get_world_size(), is_initialized=True)
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    is_one = rank.isdecimal() and size.isdecimal()
    return _Place(int(rank) if is_one else 0, int(size) if is_one else 1, is_initialized=False)


def _rank_of(module: Any, environment: Mapping[str, str]) -> Any:
    """This process among the ranks of its island. ConfigError where the ranks cannot exchange the module."""
    place = _place(environment)
    if place.size > 1 and not place.is_initialized:
        do = "Call torch.distributed.init_process_group() before, in every rank."
        raise ConfigError(_MAKING, f"a process group of the {place.size} ranks that were started", "none", do)
    if not place.is_initialized:
        from isthmus.ops.island.torch_loop import SoleRank

        return SoleRank()
    from isthmus.ops.island.torch_ranks import Ranks, fault_of_ranks

    if fault := fault_of_ranks(module):
        do = "Shard it by torch.distributed.fsdp.fully_shard, or wrap it in DistributedDataParallel."
        raise ConfigError(_MAKING, "a module of DDP or FSDP2, or one without either", fault, do)
    return Ranks(module)


def _checked_model(framework: Any, module: Any, merge: tuple[tuple[str, str], ...], access: Any) -> Any:
    leaves = [*module.parameters(), *module.buffers()]
    devices = sorted({str(leaf.device) for leaf in leaves})
    if len(devices) != 1:
        do = "Move the module to one device before: model.to(device)."
        raise ConfigError(_MAKING, "a module with parameters, all on one device", ", ".join(devices) or "none", do)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        do = "Let requires_grad be true for what is to be trained."
        raise ConfigError(_MAKING, "a parameter that is trained", "all of them frozen", do)
    return framework.Model(module, merge, leaves[0].device, access)


def _checked_moments(framework: Any, model: Any, optimizer: Any) -> Any:
    try:
        return framework.OptimizerState(optimizer, model)
    except TypeError as error:
        do = "Pass the optimizer that the loop steps, made of this module's parameters."
        raise ConfigError(_MAKING, "an optimizer of the module", str(error), do) from error


def _tokens_of(tokens: Any) -> int:
    with suppress(TypeError, ValueError):
        count = int(tokens)
        if count == tokens and count >= 0 and not isinstance(tokens, bool):
            return count
    do = "Pass the tokens, or samples, that this step has trained on."
    raise ConfigError(f"Calling {_STEPPING}", "tokens= an integer of at least 0", repr(tokens), do)


def _check_loss(loss: Any) -> None:
    is_number = isinstance(loss, int | float) and not isinstance(loss, bool)
    if is_number or (hasattr(loss, "dtype") and getattr(loss, "numel", lambda: 0)() == 1):
        return
    do = "Pass the loss of this step: a scalar tensor, or a number."
    raise ConfigError(f"Calling {_STEPPING}", "a loss that is one number", repr(loss)[:60], do)
