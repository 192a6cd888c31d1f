"""The shipped task: a small transformer that learns to predict text, byte by byte.

By default it is nano (131,904 parameters) on the sources of Python's standard library; the keywords of `task` are the
settings of section `task.`, and make it larger, give it experts, or train it on other text or on tokens. Importing this
module imports no jax, so that a wrong setting is found in no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from types import NoneType
from typing import Any, Final, NamedTuple

from isthmus.ops.data.batches import Windows
from isthmus.ops.data.corpus import Corpus, CorpusFile, DataError, find, load
from isthmus.programs.sweeps import BATCHES, batch_default
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError, Fault


def task(
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    context: int = 64,
    tied: bool = False,
    dtype: str = "float32",
    batch: int | tuple[int, ...] | None = None,
    lr: float | None = None,
    warmup: float = 0.2,
    weight_decay: float = 0.1,
    clip: float = 1.0,
    optimizer: str = "muon",
    data: tuple[str, ...] = (),
    vocabulary: int | None = None,
    token_dtype: str = "uint16",
    experts: int = 0,
    experts_chosen: int = 2,
    experts_slack: float = 1.25,
    experts_balance: float = 0.01,
    stacked: bool = False,
    checkpoint: bool = False,
) -> Task:
    """The language model as a Task. ConfigError, with every fault, for a setting out of range and for wrong data.

    - `layers`, `width`, `heads`, `context` (tokens), `tied` (the output head is the token embedding), `dtype`
      ("float32" or "bfloat16", of the computation: parameters are float32): the model.
    - `batch`: sequences a batch, or a tuple with those of each slot; slots beyond its end have the last; if absent 8,
      or fewer in a run that would merge too seldom (`programs.sweeps`). `lr`: the peak of the learning rate; if absent
      by optimizer, width and batch (`rate_default`); `warmup`: the share of the run in which it rises to there;
      `weight_decay` of matrices; `clip`: the largest global norm of a gradient. `optimizer`: "muon" for the matrices of
      the layers (routers of experts apart), with AdamW for all else, or "adamw" for everything.
    - `data`: files and folders, read as bytes, or `.npy` and `.bin` files of token ids with their `vocabulary` size;
      `token_dtype`: "uint16" or "uint32", of `.bin` files. Nothing is the standard library.
    - `experts`: how many the feed-forward half of every layer has; 0 makes it dense. Each token goes to
      `experts_chosen` of them; an expert has room for `experts_slack` times its even share of a sequence;
      `experts_balance` is the weight, in the training loss, of the imbalance of tokens over experts ("balance",
      reported beside the loss).
    - `stacked`: all layers are rows of the same tensors, and compiled once: for deep models. `checkpoint`: the backward
      pass computes each layer again, in place of keeping its activations.

    The evaluation is 256 windows of held-out text (or the next multiple of `batch`), the same in every run.
    """
    faults = list(_faults(dict(locals())))
    if faults:
        raise ConfigError.of(faults)
    try:
        corpus = _load(find(data), vocabulary, token_dtype)
        sequences = BATCHES[0] if batch is None else batch if isinstance(batch, int) else tuple(batch)
        windows = Windows(corpus, sequences, length=context + 1)
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error

    from isthmus.ops import transformer
    from isthmus.ops.island.optimizer import adamw, muon
    from isthmus.ops.transformer import Routing

    routing = Routing(experts, experts_chosen, experts_slack, experts_balance) if experts else None
    config = transformer.ModelConfig(
        corpus.vocabulary,
        layers,
        width,
        heads,
        context,
        tied=tied,
        dtype=dtype,
        routing=routing,
        stacked=stacked,
        checkpoint=checkpoint,
    )
    kind = adamw if optimizer == "adamw" else partial(muon, is_hidden=transformer.is_hidden)
    return Task(
        partial(transformer.init, config),
        partial(transformer.balanced_loss if experts else transformer.loss, config),
        windows.batch,
        tokens_per_batch=sequences * context if isinstance(sequences, int) else tuple(n * context for n in sequences),
        optimizer=kind(
            peak=rate_default(optimizer, width, sequences) if lr is None else lr,
            warmup=warmup,
            weight_decay=weight_decay,
            clip=clip,
        ),
        evaluation=windows.evaluation_batches,
        merge={"embedding": "average", **({} if tied else {"head": "average"}), "**": "rda"},
        stacked=("layers/**",) if stacked else (),
    )


def chosen(settings: Mapping[str, Any], *, tokens: int, learners: int) -> dict[str, Any]:
    """The batch and the rate for a run of so many tokens, as far as `settings`, all of the task's, have None there."""
    batch = settings["batch"] or batch_default(tokens, learners, settings["context"])
    values = {"batch": batch, "lr": rate_default(settings["optimizer"], settings["width"], batch)}
    return {key: value for key, value in values.items() if settings[key] is None}


def rate_default(optimizer: str, width: int, batch: int | Sequence[int]) -> float:
    """The peak of the learning rate: for AdamW it falls with the width; both fall with the root of the batch below 8
    sequences, to three digits.

    Muon's was compared at width 64 alone.
    """
    sequences = batch if isinstance(batch, int) else sum(batch) / len(batch)
    peak = 0.012 if optimizer == "muon" else 0.384 / width
    return float(f"{peak * min(sequences / BATCHES[0], 1.0) ** RATE_POWER:.3g}")


class _Rule(NamedTuple):
    """The rule for a setting: its types, a predicate, and both in words."""

    types: tuple[type, ...]
    holds: Callable[[Any], bool]
    expected: str


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


RATE_POWER: Final = 0.5
_COUNT = _Rule((int,), lambda value: value >= 1, "an integer of at least 1")
_NUMBER = (int, float)
_DTYPES, _OPTIMIZERS, _TOKEN_DTYPES = ("float32", "bfloat16"), ("adamw", "muon"), ("uint16", "uint32")
_RULES: Mapping[str, _Rule] = {
    "layers": _COUNT,
    "width": _COUNT,
    "heads": _COUNT,
    "context": _COUNT,
    "tied": _Rule((bool,), lambda _: True, "true or false"),
    "dtype": _Rule((str,), _DTYPES.__contains__, " or ".join(_DTYPES)),
    "batch": _Rule(
        (int, tuple, list, NoneType),
        lambda value: (
            value is None
            or (_COUNT.holds(value) if isinstance(value, int) else bool(value) and all(map(_is_count, value)))
        ),
        "an integer of at least 1, or a list of them, one for each slot",
    ),
    "lr": _Rule((*_NUMBER, NoneType), lambda value: value is None or 0 < value < math.inf, "a number above 0"),
    "warmup": _Rule(_NUMBER, lambda value: 0 <= value < 1, "a number from 0 to below 1, a share of the run"),
    "weight_decay": _Rule(_NUMBER, lambda value: 0 <= value < math.inf, "a number of at least 0"),
    "clip": _Rule(_NUMBER, lambda value: 0 < value < math.inf, "a number above 0"),
    "optimizer": _Rule((str,), _OPTIMIZERS.__contains__, " or ".join(_OPTIMIZERS)),
    "data": _Rule((tuple, list), lambda paths: all(isinstance(path, str) for path in paths), "a tuple of paths"),
    "vocabulary": _Rule((int, NoneType), lambda value: value is None or 2 <= value < 1 << 31, "from 2 to 2^31 - 1"),
    "token_dtype": _Rule((str,), _TOKEN_DTYPES.__contains__, " or ".join(_TOKEN_DTYPES)),
    "stacked": _Rule((bool,), lambda _: True, "true or false"),
    "checkpoint": _Rule((bool,), lambda _: True, "true or false"),
    "experts": _Rule((int,), lambda value: value >= 0, "an integer of at least 0"),
    "experts_chosen": _COUNT,
    "experts_slack": _Rule(_NUMBER, lambda value: 0 < value < math.inf, "a number above 0"),
    "experts_balance": _Rule(_NUMBER, lambda value: 0 <= value < math.inf, "a number of at least 0"),
}


def _faults(settings: Mapping[str, Any]) -> Iterator[Fault]:
    wrong = set()
    for name, rule in _RULES.items():
        value = settings[name]
        is_bool = isinstance(value, bool) and bool not in rule.types
        if is_bool or not isinstance(value, rule.types) or not rule.holds(value):
            wrong.add(name)
            yield Fault(f"Setting task.{name}", rule.expected, repr(value), f"Change task.{name}, or leave it out.")
    width, heads = settings["width"], settings["heads"]
    if not wrong & {"width", "heads"} and (width % heads or width // heads % 2):
        do = f"Set task.width to a multiple of {2 * heads}, or change task.heads."
        expected = "a width that divides into heads of even size"
        yield Fault("Setting task.width and task.heads", expected, f"width {width} and {heads} heads", do)
    experts, chosen = settings["experts"], settings["experts_chosen"]
    if not wrong & {"experts", "experts_chosen"} and 0 < experts < chosen:
        do = "Set task.experts_chosen to fewer of them, or task.experts to more."
        yield Fault("Setting task.experts_chosen", f"from 1 to {experts}, for there are so many", str(chosen), do)


@lru_cache(maxsize=2)
def _load(sources: tuple[CorpusFile, ...], vocabulary: int | None, token_dtype: str) -> Corpus:
    """The corpus, read once for all learners of a process; a file that has changed is another Source."""
    return load(sources, vocabulary=vocabulary, token_dtype=token_dtype)
