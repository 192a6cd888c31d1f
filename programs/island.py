"""`isthmus.island`: the user's own loop as a learner.

    with isthmus.island(model, optimizer) as island:
        for batch in loader:
            loss = ...; loss.backward(); optimizer.step(); optimizer.zero_grad()
            island.step(loss, tokens=n)

What a framework brings of the model is in `module_island`, of PyTorch, and `state_island`, of jax. Decides what the
loop's user sees: checks of what is passed, and the names on an island. How a process comes to its life, from a run that
has started it or from a home that it joins, is in `loop_ways`. A first step that is made before the run is not counted:
the values after that of slot 0 are the first that are exchanged.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island.life import IslandSlot, LearnerLife
from isthmus.programs.loop_script import LoopLife
from isthmus.programs.loop_task import LoopModel, ModelFound
from isthmus.programs.loop_ways import MAKING, LoopWay, OwnJudge, answering, end_process, way_of
from isthmus.programs.task import METRICS_MAX
from isthmus.runtime.errors import ConfigError, RunError, shortened
from isthmus.runtime.ids import LEARNER, Replica
from isthmus.runtime.system.processes import print_stacks_at_signal

if TYPE_CHECKING:
    pass

TOKENS_MOST: Final = 8
"""By default no step may have more than so many times the tokens of the first one: no island may claim more."""
IGNORED: Final = -100
"""The label of what is not trained on, in PyTorch."""
_LEAVING: Final = (signal.SIGTERM, signal.SIGHUP)
_inside: Final[list[Island]] = []
"""The island whose `with` this process is in: it has one host."""

Item = TypeVar("Item")


def island(
    model: Any,
    optimizer: Any = None,
    *,
    merge: Mapping[str, str] | Sequence[tuple[str, str]] = (("**", "rda"),),
    tokens_most: int | None = None,
    evaluate: Callable[[Any], Any] | None = None,
    invite: str | os.PathLike[str] | None = None,
    address: str | None = None,
    name: str | None = None,
) -> Island:
    """The learner of a run that is this process's loop, to be used in a `with`.

    Arguments:
        model: a `torch.nn.Module` on one device, or a list or dict of some, such as a model and its head; or the state
            of a loop in jax, a tree of arrays with the optimizer's among them.
        optimizer: one of the module's parameters, a list or dict of several, each parameter in one of them, or an
            object around them; none beside a state in jax.
        merge: the rules by which its leaves are merged, as of a task: patterns on names with `/` for `.`, and on the
            paths of a tree, of which each leaf needs a rule; a parameter that another pattern than `**` names takes
            part while it needs no gradient, too.
        tokens_most: the most tokens that a step can have, by default eight times those of the first one.
        evaluate: called with a model, returns a loss, or numbers by name with a 'loss' among them: a process of its own
            runs the script as far as the `with`, and calls it with the module, or the state, that has the values of the
            whole run; of loops that start themselves one calls it between two steps. Without it nothing is evaluated.
        invite: the file of an invitation (or the text of one in ISTHMUS_INVITE), by which a process joins that `isthmus
            train --loop` has not started.
        address: tcp://127.0.0.1:PORT of a home without keys, where such a process joins without an invitation.
        name: what its machine is called there, by default what the invitation says, or the host's name.

    ConfigError for anything else.
    """
    _check_alone()
    way = way_of(os.environ, invite=invite, address=address, name=name)
    rules = tuple(merge.items()) if isinstance(merge, Mapping) else tuple(merge)
    with answering(way):
        return Island(way, _loop_model(model, optimizer, rules), tokens_most, evaluate)


@final
class Island:
    """One island of a run, in the process of a user's loop; see `island`.

    At `with` the module is given the run's present model, and the optimizer what its slot has kept. Each `step` adopts
    what has been merged meanwhile, and never waits for another island. After `with` the module has the run's last model
    if the run is over.
    """

    def __init__(
        self,
        way: LoopWay,
        model: LoopModel,
        tokens_most: int | None,
        evaluate: Any,
    ) -> None:
        """`way`: how this process comes to its life."""
        self._model, self._tokens_most, self._evaluate = model, tokens_most, evaluate
        self._ranks = model.ranks
        if not self._ranks.is_leader:  # Rank 0 has a host, which does it.
            print_stacks_at_signal()
        if evaluate is not None and not callable(evaluate):
            do = "Pass a function of the model."
            raise ConfigError(MAKING, "evaluate= a function", f"a {type(evaluate).__name__}", do)
        self._calling = f"Calling {model.step_call}"
        self._counts = TokenCounts(model)
        self._first_batch = FirstBatch()
        self._way = way
        self._host: Any = None
        self._own_judge: OwnJudge | None = None
        self._kept: tuple[Any, ...] | None = None
        self._learner: Any = None
        self._thread: int | None = None
        self._process = 0
        self._handlers: dict[int, Any] = {}
        self._more: dict[str, Any] = {}
        self._over = StepsAfterEnd(self._ranks.told, self._tell_goes_on, lambda: self._host.over_seconds)

    @property
    def way(self) -> LoopWay:
        """How this process comes, or came, to its life."""
        return self._way

    # -- in and out ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Join the run, and wait for its model. ConfigError, RunError if that is not possible."""
        _check_alone()
        with answering(self._way):
            doing, do = "Entering the with of an island", "Write one `with` around all of the training."
            if self._host is not None:
                raise ConfigError(doing, "an island that begins", "one whose with has ended", do)
        self._thread, self._process = threading.get_ident(), os.getpid()
        _inside.append(self)
        self._model.watch()
        try:
            return self._enter()
        except BaseException:
            self._model.unwatch()
            _inside.remove(self)
            raise

    def _enter(self) -> Self:
        try:
            life = self._way.enter(self._model, evaluates=self._evaluate is not None)
            if life is not None:
                self._begin(life)
        except BaseException:
            self._way.give_up(self._model)
            raise
        return self

    def _begin(self, life: LoopLife) -> None:
        """Be that life, and wait for the run's model; the life of an evaluator ends here, with the process."""
        from isthmus.programs.engine.run.loop_host import LoopHost

        leaves, in_forks, is_guest = self._model.leaves(), self._restore_handlers, self._way.is_guest
        is_learner = Replica.parse(life.replica).role == LEARNER
        judge = self._judge(is_beside=is_learner) if is_guest or not is_learner else None
        if not is_learner:
            self._host = self._model.host(
                partial(LoopHost, life, leaves, in_forks=in_forks, judge=judge), make_learner=self._make, judge=judge
            )
            self._host.begin()
            end_process()
        self._own_judge = None if judge is None else self._way.own_judge(judge)
        make_host = partial(
            LoopHost,
            life,
            leaves,
            in_forks=in_forks,
            make=self._make,
            own_judge=self._own_judge,
            first_batch=self._first_batch.digest,
            is_guest=is_guest,
        )
        self._host = self._model.host(make_host, make_learner=self._make, judge=judge)
        if not is_guest:
            self._handle_signals()
        with self._raising_own():
            self._host.begin()
        if self._host.is_over:
            self._check_place()
        if self._kept is not None:
            self._keep(self._kept)

    def _check_place(self) -> None:
        """RunError if the home has taken the slot of this loop away; in a run that is over it needs none."""
        if self._way.lost and self.progress < 1.0:
            raise RunError(f"this loop is no island of the run any more: {self._way.lost}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Leave the run: in order, or by the exception that has ended the loop, of which one of ours ends here: the
        lines behind the `with` run. Nothing in a process that was forked in the loop, whose end is not the island's."""
        if self._process != os.getpid():
            return False
        self._thread = None
        self._model.unwatch()
        _inside.remove(self)
        is_left = isinstance(error, LedOut)
        is_in_order = error is None or is_left or (isinstance(error, SystemExit) and not error.code)
        was_over = self.is_over and is_in_order
        try:
            if self._host is None:
                self._way.leave_unbegun(error, self._model)
            elif is_in_order:
                self._ranks.settle()
                self._leave()
            else:
                self._host.fail(error)
        finally:
            self._restore_handlers()
            self._way.close(0 if is_in_order else 1, is_over=was_over)
        return is_left

    def _leave(self) -> None:
        try:
            self._model.check_end()
        except ConfigError as fault:
            self._host.fail(fault)
            raise
        with self._raising_own():
            self._host.leave()

    @contextmanager
    def _raising_own(self) -> Iterator[None]:
        """Where the user's evaluation has ended this island, raise what that has raised; and where the home has taken
        its place away, the reason for that."""
        try:
            yield
        except RunError:
            if self._own_judge is not None and self._own_judge.fault is not None:
                raise self._own_judge.fault from None
            self._check_place()
            raise

    def _make(self, fragments: Sequence[Fragment], life: LearnerLife, alpha: float) -> Any:
        """The learner of this loop, which inner-step asks for as it opens."""
        learner = self._model.learner(fragments, life=life, alpha=alpha)
        self._learner = self._ranks.learner(learner, fragments, life, alpha)
        return self._learner

    def _judge(self, *, is_beside: bool) -> Any:
        """What evaluates in this process, beside a learner or in place of one."""
        if self._evaluate is None:
            return None
        return self._ranks.judge(self._model.evaluator(self._evaluate, is_beside=is_beside))

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

    def step(self, stepped: Any = None, loss: Any = None, *, tokens: Any) -> Any:
        """Count a step that the loop has made: adopt what was merged meanwhile, and answer pulls.

        `step(loss, tokens=n)` in PyTorch, `state = step(state, loss=loss, tokens=n)` in jax. `loss` is a number or a
        scalar tensor, `tokens` those on which this step has trained, also an integer tensor. On a device both may still
        be computed: they are read a step later. The step that ends the run waits for its last model. Where `is_over`,
        nothing is counted; a loop that goes on for long is led out of the `with`. ConfigError for other arguments, in
        another thread, or outside of the `with`.
        """
        with answering(self._way):
            self._check_thread(self._calling)
            self._ranks.settle()
            loss = self._model.after(stepped, loss)
            trained = self._counts.of(tokens)
            found = self._found(self._ranks.total(trained)) if self._host is None else None
        if found is not None:
            self._begin_run(found)
        elif self._host.is_over:
            self._over.step()
        else:
            self._check_place()
            trained, loss = self._ranks.count(trained, loss)
            if trained > self._host.tokens_most:  # Or the run would take this island for one that lies, and end it.
                do = "Pass isthmus.island the most tokens that a step can have, by tokens_most=."
                expected = f"tokens= of at most {self._host.tokens_most}, as the run has it"
                raise ConfigError(self._calling, expected, str(trained), do)
            scalars, self._more = {"loss": loss, **self._more}, {}
            self._learner.record(trained, scalars)
            with self._raising_own():
                self._host.go_on()
            if self._host.is_over:
                self._check_place()
                self._model.check_last()
        return self._model.stepped()

    def _tell_goes_on(self) -> None:
        if self._ranks.is_leader:
            self._way.tell_goes_on()

    def _begin_run(self, found: ModelFound) -> None:
        """Tell of the model, after a first step, and be a host of the run that begins with it."""
        self._way, life = self._way.begin(found, self._model)
        self._begin(life)

    @property
    def state(self) -> Any:
        """The module; or in jax the state, which from the beginning of the `with` has the run's present model, and
        behind it, where the run is over, its last one."""
        return self._model.state

    def metrics(self, **scalars: Any) -> None:
        """Report numbers beside the loss of the next `step`."""
        if len(self._more | scalars) > METRICS_MAX:
            do = "Report those that are to be plotted."
            raise ConfigError("island.metrics()", f"at most {METRICS_MAX} scalars", str(len(scalars)), do)
        self._more |= scalars

    def keep(self, *kept: Any) -> None:
        """Keep schedulers, scalers and whatever else has `state_dict` and `load_state_dict`, with the optimizer's
        state: it is given what the life of this slot before has kept. Once, inside of the `with`, before the loop."""
        doing = "island.keep()"
        with answering(self._way):
            self._check_thread(doing)
            if fault := self._model.fault_of_kept(kept):
                do = "Pass what torch.load(..., weights_only=True) can read: tensors, numbers, texts, lists and dicts."
                raise ConfigError(doing, "things with state_dict and load_state_dict", fault, do)
        if self._learner is not None:
            self._keep(kept)
        else:
            self._kept = kept

    def _keep(self, kept: tuple[Any, ...]) -> None:
        try:
            self._learner.keep(kept)
        except ValueError as error:
            do = "Pass as many, in the same order, in every life."
            raise ConfigError("island.keep()", f"as many as before, not {len(kept)}", str(error), do) from error

    def __call__(self, batches: Iterable[Item], *, epochs: int | None = 1) -> Iterator[Item]:
        """The batches, until no further step is to be made: of so many passes over them, None for as many as it takes.

        Before each pass a loader, or its sampler, that has `set_epoch` is told the number of the pass. ConfigError for
        several passes over what can be iterated once, and for one without a batch.
        """
        if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1):
            do = "Pass the number of passes over the loader, or None for as many as the run takes."
            raise ConfigError(
                "Calling island(batches)", "epochs= an integer from 1 on, or None", shortened(repr(epochs), 60), do
            )
        if epochs != 1 and iter(batches) is batches:
            do = "Pass the loader itself, not iter(loader); or one pass, and write the loop over epochs around it."
            raise ConfigError("Calling island(batches)", "a loader for several epochs", "what can be read once", do)
        return self._batches(batches, epochs)

    def _batches(self, batches: Iterable[Item], epochs: int | None) -> Iterator[Item]:
        if self._host is not None and self._host.is_over:
            self._over.empty_pass()
            return
        for epoch in count() if epochs is None else range(epochs):
            if epochs != 1:
                set_epoch(batches, epoch)
                set_epoch(getattr(batches, "sampler", None), epoch)
            is_empty = True
            for batch in batches:
                is_empty = False
                self._first_batch.take(batch)
                yield batch
                if self.is_over:  # Before the next batch is read.
                    return
            if is_empty and epochs != 1:
                do = "Look at the loader: its data set, batch_size and drop_last."
                raise ConfigError("Calling island(batches)", "a batch in each epoch", f"none in epoch {epoch}", do)

    @property
    def is_over(self) -> bool:
        """Whether no further step is to be made: the tokens are trained, or this island is to leave."""
        return self._host is not None and bool(self._host.is_over)

    @property
    def progress(self) -> float:
        """The share in [0, 1] of the run's token budget that is trained: what a schedule follows."""
        if self._host is not None and self._host.is_over:  # No step that may be made has the last share.
            return min(1.0, float(self._host.progress))
        return 0.0 if self._learner is None else min(1.0, float(self._learner.progress))

    @property
    def slot(self) -> int:
        """The number of this island among `slots`."""
        return 0 if self._place is None else int(self._place.slot)

    @property
    def slots(self) -> int:
        """The most islands that the run may ever have."""
        return 1 if self._place is None else int(self._place.slots)

    @property
    def seed(self) -> int:
        """A seed for samplers and generators, another one in every slot; 63 bits."""
        if self._place is None:
            return 0
        from isthmus.ops.data.batches import At

        place = self._place
        return int(At(place.seed, place.slot, 0).rng().integers(1 << 63))

    @property
    def _place(self) -> IslandSlot | None:
        return self._way.place if self._host is None else self._host.place

    @property
    def position(self) -> int:
        """The steps of this slot that are merged, or were made in this life: where to go on in the data."""
        return 0 if self._host is None else int(self._host.position)

    def _check_thread(self, doing: str) -> None:
        if self._thread is None:
            do = "Call it in the loop inside of `with isthmus.island(...) as island:`."
            raise ConfigError(doing, "a call inside of the with", "one outside of it", do)
        if self._process != os.getpid():
            do = "Call it in the process that has entered the with."
            raise ConfigError(doing, "one process", "another one, which was forked from it", do)
        if self._thread != threading.get_ident():
            do = "Call it in the thread that has entered the with."
            raise ConfigError(doing, "one thread", "another one", do)

    def _found(self, tokens: int) -> ModelFound:
        """What this process tells of its model, after a first step of so many tokens; ConfigError if it has none."""
        most = TOKENS_MOST * tokens if self._tokens_most is None else self._tokens_most
        if not isinstance(most, int) or isinstance(most, bool):
            do = "Pass the most tokens that a step can have."
            raise ConfigError(MAKING, "tokens_most= an integer", shortened(repr(most), 60), do)
        if tokens < 1:
            do = "Pass the tokens, or samples, that the step has trained on."
            raise ConfigError(self._calling, "at least 1 token in the first step", str(tokens), do)
        if most < tokens:
            do = "Pass the most tokens that a step can have."
            raise ConfigError(MAKING, f"tokens_most= of at least {tokens}, those of the first step", str(most), do)
        size_bytes, evaluates, frozen = self._model.learner_bytes(), self._evaluate is not None, self._model.frozen()
        return ModelFound(tuple(self._model.leaves()), self._model.merge, tokens, most, size_bytes, evaluates, frozen)


def _check_alone() -> None:
    """ConfigError inside of the `with` of an island, of which a process has one."""
    for each in _inside:
        with answering(each.way):
            do = "Write one `with` around all of the training."
            found = "a second one inside of the first"
            raise ConfigError("Entering the with of an island", "one at a time", found, do)


def set_epoch(ordered: Any, epoch: int) -> None:
    """Tell a loader, or a sampler, the number of the pass that begins, if it takes one."""
    if hasattr(ordered, "set_epoch"):
        ordered.set_epoch(epoch)


class LedOut(BaseException):
    """Leads a loop that goes on after the end of its run out of the `with`, which takes it.

    No Exception, because loops catch these around a step.
    """


LED_OUT_STEPS: Final = 100
"""A loop that has made so many steps, for run.loop_over_seconds, after the end of its run will not ask whether that is
over."""


@final
class StepsAfterEnd:
    """The steps that a loop makes though its run is over: the first is said on stderr, and after a while the loop is
    led out of its `with`. `told` returns what rank 0 finds, in all ranks; `tell` tells the run; `seconds_max` is how
    long it may go on (run.loop_over_seconds)."""

    def __init__(
        self, told: Callable[[Callable[[], Any]], Any], tell: Callable[[], None], seconds_max: Callable[[], float]
    ) -> None:
        self._told, self._tell, self._seconds_max = told, tell, seconds_max
        self._count, self._since, self._has_told = 0, 0.0, False

    def step(self) -> None:
        """Count one; LedOut from LED_OUT_STEPS and `seconds_max` after the end on."""
        self._add(1)

    def empty_pass(self) -> None:
        """Count a pass over batches of which none is to be taken, as so many steps that three are enough; the first is
        how a loop ends that goes through its batches once."""
        self._add(-(-LED_OUT_STEPS // 3), is_told=self._count > 0)

    def _add(self, steps: int, *, is_told: bool = True) -> None:
        if not self._count:
            self._since = time.monotonic()
        self._count += steps
        if is_told and not self._has_told:
            self._has_told = True
            sys.stderr.write(
                "isthmus: the run is over, and further steps count for nothing. "
                "Leave the loop: ask `island.is_over`, or "
                "write `for batch in island(loader)`. "
                f"In {self._seconds_max():.0f} s run.loop_over_seconds leads it out of its `with`.\n"
            )
            sys.stderr.flush()
            self._tell()
        if self._count >= LED_OUT_STEPS and self._told(lambda: time.monotonic() - self._since >= self._seconds_max()):
            raise LedOut


def _as_module(model: Any, torch: Any) -> Any:
    """One module of a list or dict of modules, such as a model and its head; anything else as it is."""
    values = list(model.values()) if isinstance(model, Mapping) else list(model) if type(model) in (list, tuple) else []
    if not values or not all(isinstance(each, torch.nn.Module) for each in values):
        return model
    try:
        return torch.nn.ModuleDict(dict(model)) if isinstance(model, Mapping) else torch.nn.ModuleList(values)
    except (KeyError, TypeError) as error:  # A name that torch does not give to a part of a module.
        do = "Name the modules otherwise: by texts without a dot, of which none is an attribute of torch.nn.ModuleDict."
        raise ConfigError(MAKING, "names of modules in a dict", str(error), do) from error


def _loop_model(model: Any, optimizer: Any, rules: tuple[tuple[str, str], ...]) -> LoopModel:
    """The model of a loop, as its framework has it."""
    torch: Any = sys.modules.get("torch")
    model = model if torch is None else _as_module(model, torch)
    if torch is not None and isinstance(model, torch.nn.Module):
        from isthmus.programs.module_island import ModuleModel

        return ModuleModel(model, optimizer, rules)
    if optimizer is None:
        from isthmus.programs.state_island import StateModel

        return StateModel(model, rules)
    do = "Pass the module itself, before or after torch.compile. A state in jax has the optimizer's in it."
    raise ConfigError(MAKING, "a torch.nn.Module beside an optimizer", f"a {type(model).__name__}", do)


@final
class FirstBatch:
    """The first batch that a loop takes from its island, of which others learn a digest."""

    def __init__(self) -> None:
        self._digest: int | None = None

    def take(self, batch: Any) -> None:
        """Take the first of all batches."""
        if self._digest is None:
            from isthmus.ops.learner.first_data import batch_digest

            self._digest = batch_digest(batch)

    def digest(self) -> int:
        """Its digest; 0 without one."""
        return self._digest or 0


@final
class TokenCounts:
    """The tokens of a loop's steps.

    Those on a device may still be computed as a step ends. Then the step counts as many as the last one of which they
    are known, and the difference is made up for in the steps that follow, of which none counts more than any had.
    """

    def __init__(self, model: LoopModel) -> None:
        self._model = model
        self._last: int | None = None
        self._later: Any = None
        self._most = self._owed = 0

    def of(self, tokens: Any) -> int:
        """The tokens that the step counts which was made now; ConfigError if they are no integer of at least 0."""
        if self._later is not None:
            before, self._last, self._later = self._last, self._known(self._later), None
            self._owed += self._last - (before or 0)
        later = self._later_of(tokens)
        if self._last is None or getattr(later, "is_ready", lambda: True)():
            self._last = self._known(later)
        else:
            self._later = later
        wanted = self._last + self._owed
        counted = min(max(wanted, min(self._last, 1)), self._most)
        self._owed = wanted - counted
        return counted

    def _later_of(self, tokens: Any) -> Any:
        try:
            return self._model.read_later(tokens) if hasattr(tokens, "dtype") else tokens
        except (TypeError, ValueError, RuntimeError):  # It has several numbers, for example.
            raise self._error(tokens) from None

    def _known(self, tokens: Any) -> int:
        with suppress(TypeError, ValueError):
            number = np.asarray(tokens)
            count = int(number)
            if count == number and count >= 0 and number.dtype != np.bool_:
                self._most = max(self._most, count)
                return count
        raise self._error(tokens)

    def _error(self, tokens: Any) -> ConfigError:
        do = "Pass the tokens, or samples, that this step has trained on."
        return ConfigError(
            f"Calling {self._model.step_call}", "tokens= an integer of at least 0", shortened(repr(tokens), 60), do
        )
