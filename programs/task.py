"""What a program trains: a model, its data and its optimizer, as plain functions.

A Task knows nothing of graphs and hosts: every program trains every task. It checks here what can be seen without
calling anything; `layout` runs the task on shapes and finds the rest. Importing this module imports no jax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, final

from isthmus.ops.data import At, Split, of_slot
from isthmus.runtime.errors import ConfigError, Fault

if TYPE_CHECKING:
    import optax

__all__ = ["EVALUATION_BATCHES", "At", "Split", "Task"]

EVALUATION_BATCHES = 16
"""How many batches the evaluation is where a task does not say."""


@final
@dataclass(frozen=True, slots=True)
class Task:
    """Something to train. ConfigError, with every fault, for arguments that are not what this says.

    - `init(key)`: the first parameters, a pytree of float32 arrays, from a jax random key.
    - `loss(params, batch)`: a scalar to make small. It is compiled and differentiated, so it reads arrays only.
    - `batch(at)`: a pytree of numpy arrays; a pure function of `at`, and of one structure, shape and dtype for every
      `at`, or for every `at` of one slot where `tokens_per_batch` is a tuple. With `at.split == "evaluation"` it is
      held-out data.
    - `tokens_per_batch`: what one batch counts for in the token budget and in the accounts. A tuple has the number of
      each slot, where slots have batches of their own sizes; slots beyond its end have the last.
    - `optimizer`: an optax gradient transformation. One that takes extra arguments gets `progress=`, the share in
      [0, 1] of the run's token budget that has been trained, as a traced float32.
    - `evaluation`: the number of batches of the evaluation split whose mean loss is reported; None is 16.
    - `embeddings`: names of embedding-like tensors ('embedding', or 'decoder/head', or a folder of them), whose outer
      gradients are merged by the weighted average and not by radial-directional averaging.
    """

    init: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    batch: Callable[[At], Any]
    _: KW_ONLY
    tokens_per_batch: int | tuple[int, ...]
    optimizer: optax.GradientTransformation
    evaluation: int | None = None
    embeddings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        faults = list(_faults(self))
        if faults:
            raise ConfigError.of(faults)
        object.__setattr__(self, "embeddings", tuple(self.embeddings))
        if not isinstance(self.tokens_per_batch, int):
            object.__setattr__(self, "tokens_per_batch", tuple(self.tokens_per_batch))

    def tokens_mean(self, learners: int) -> int:
        """The tokens of one batch, on average over so many learners, in whole tokens."""
        return round(sum(of_slot(self.tokens_per_batch, slot) for slot in range(learners)) / learners)

    def evaluation_batches(self, seed: int) -> Iterator[Any]:
        """The batches of the evaluation, in order and made one at a time: slot 0, positions from 0."""
        count = EVALUATION_BATCHES if self.evaluation is None else self.evaluation
        return (self.batch(At(seed, 0, position, "evaluation")) for position in range(count))


def _faults(task: Task) -> Iterator[Fault]:
    doing = "Making a Task"
    for name, call in (("init", "init(key)"), ("loss", "loss(params, batch)"), ("batch", "batch(at)")):
        value = getattr(task, name)
        if not callable(value):
            yield Fault(doing, f"a function {call}", repr(value), f"Pass the function {name} itself, not its result.")
    if not all(callable(getattr(task.optimizer, name, None)) for name in ("init", "update")):
        do = "Pass for example optimizer=optax.adamw(1e-3)."
        yield Fault(doing, "optimizer= an optax gradient transformation", repr(task.optimizer), do)
    counts = task.tokens_per_batch if isinstance(task.tokens_per_batch, tuple | list) else (task.tokens_per_batch,)
    if not counts or not all(map(_is_count, counts)):
        do = "Say how many tokens (or samples) one batch counts for."
        expected = "tokens_per_batch= an integer of at least 1, or a tuple of them, one for each slot"
        yield Fault(doing, expected, repr(task.tokens_per_batch), do)
    if not (task.evaluation is None or _is_count(task.evaluation)):
        do = f"Say how many batches to evaluate on, or leave it out for {EVALUATION_BATCHES}."
        yield Fault(doing, "evaluation= an integer of at least 1, or None", repr(task.evaluation), do)
    embeddings = task.embeddings
    if not isinstance(embeddings, tuple | list) or not all(isinstance(name, str) for name in embeddings):
        do = 'Write one name as ("embedding",).'
        yield Fault(doing, "embeddings= a tuple of tensor names", repr(embeddings), do)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
