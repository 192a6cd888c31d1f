"""The shipped task: a small transformer that learns to predict text, byte by byte.

By default it is nano (131,904 parameters) on the sources of Python's standard library; the keywords of `task` are the
settings of section `task.`, and make it larger, give it experts, or train it on other text or on tokens. Importing this
module imports no jax, so that a wrong setting is found in no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import numpy as np

from isthmus.ops.data.batches import Windows
from isthmus.ops.data.corpus import (
    BYTE_VOCABULARY,
    Corpus,
    CorpusFile,
    DataError,
    TokenIds,
    load,
    read,
    vocabulary_of,
    whole,
)
from isthmus.ops.data.held_out_sets import text_sets
from isthmus.ops.data.shards import PathWindows, ShardedWindows
from isthmus.ops.gang.mesh_sharding import AXES_DEFAULT, STAGE, ShardingError
from isthmus.ops.gang.mesh_stages import microbatches_of
from isthmus.ops.island.schedule import RateSchedule, ScheduleName
from isthmus.programs.evaluations import RunSize, SetsSetting, WindowsSetting, windows_default
from isthmus.programs.reading.forms import check_bytes
from isthmus.programs.reading.found import find, find_set
from isthmus.programs.reading.table import SHOWN_TOKENS, DataTable, DataTally
from isthmus.programs.routers import sharded_corpus
from isthmus.programs.settings import Setting, checked
from isthmus.programs.sweeps import BATCHES, batch_default
from isthmus.programs.task import SETS_MAX, Task, set_name_faults
from isthmus.runtime.errors import ConfigError, Fault

if TYPE_CHECKING:
    from isthmus.ops.model_config import ModelConfig, Routing


def _rules(values: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of settings that depend on each other, of values that may be out of range."""
    width, heads = values["width"], values["heads"]
    if _are_counts(width, heads) and (width % heads or width // heads % 2):
        remedy = f"Set task.width to a multiple of {2 * heads}, or change task.heads."
        expected = "a width that divides into heads of even size"
        yield Fault("Setting task.width and task.heads", expected, f"width {width} and {heads} heads", remedy)
    experts, chosen = values["experts"], values["experts_chosen"]
    if _are_counts(experts, chosen) and experts < chosen:
        remedy = "Set task.experts_chosen to fewer of them, or task.experts to more."
        yield Fault("Setting task.experts_chosen", f"from 1 to {experts}, for there are so many", str(chosen), remedy)
    paths, layers = values["paths"], values["layers"]
    if paths and (not _are_counts(*paths) or (_are_counts(layers) and layers % len(paths))):
        expected = f"numbers of modules, of levels that divide {layers} layers"
        yield Fault("Setting task.paths", expected, repr(list(paths)), REMEDY.replace("{}", "paths"))
    if paths and values["stacked"]:
        do = "Leave out task.stacked: layers that are rows of one tensor are in one level."
        yield Fault("Setting task.paths", "layers with tensors of their own", "task.stacked = true", do)
    yield from set_name_faults(values["sets"] or (), "Setting task.sets")
    if paths and values["sets"]:
        do = "Leave out task.sets, or task.paths."
        yield Fault("Setting task.sets", "a model without paths: which of them a text has is not known", "paths", do)
    if values["router"] is not None and not paths:
        do = "Set task.paths to the modules of each level, or leave out task.router."
        yield Fault("Setting task.router", "paths, a shard for each", "none", do)
    if not isinstance(batch := values["batch"], int) and batch is not None and not (batch and _are_counts(*batch)):
        yield Fault("Setting task.batch", BATCH, repr(batch), REMEDY.replace("{}", "batch"))
        return
    yield from _stage_rules(values, () if batch is None else (batch,) if isinstance(batch, int) else batch)


def _stage_rules(values: Mapping[str, Any], batches: Sequence[int]) -> Iterator[Fault]:
    """Faults of stages and micro-batches that no mesh changes."""
    layers, stages, microbatches = (values[key] for key in ("layers", "stages", "microbatches"))
    if not _are_counts(layers, stages, *batches, *(() if microbatches is None else (microbatches,))):
        return
    if (stages > 1 or microbatches is not None) and not values["stacked"]:
        key = "stages" if stages > 1 else "microbatches"
        do = f"Set task.stacked to true, or leave task.{key} out."
        yield Fault(f"Setting task.{key}", "stacked layers, which stages are cut of", "layers apart", do)
    if layers % stages:
        do = "Change task.layers or task.stages."
        yield Fault("Setting task.stages", f"a number that divides {layers} layers", str(stages), do)
    for rows in dict.fromkeys(batches):
        try:
            microbatches_of(rows, 1, stages, microbatches)
        except ShardingError as error:
            yield Fault(error.action, error.expected, error.found, error.remedy)


def _are_counts(*values: Any) -> bool:
    return all(type(value) is int and value >= 1 for value in values)


COUNT: Final = "an integer of at least 1"
BATCH: Final = "an integer of at least 1, or a list of them, one for each slot"
REMEDY: Final = "Change task.{}, or leave it out."


BatchSetting: TypeAlias = Annotated[
    int | tuple[int, ...] | None,
    Setting(
        "Sequences a batch, or a list with those of each slot; slots beyond its end have the last. Default: 8, or "
        "fewer in a run that would merge too seldom.",
        ge=1,
        expected=BATCH,
        alters=True,
    ),
]
RateSetting: TypeAlias = Annotated[
    float | None,
    Setting(
        "The peak of the learning rate. Default: by optimizer, width and batch.",
        gt=0,
        expected="a number above 0",
        resumes=True,
    ),
]
WarmupSetting: TypeAlias = Annotated[
    float,
    Setting(
        "The share of the run in which the learning rate rises to its peak.",
        ge=0,
        lt=1,
        expected="a number from 0 to below 1, a share of the run",
        resumes=True,
    ),
]
ScheduleSetting: TypeAlias = Annotated[
    ScheduleName,
    Setting(
        "The learning rate after that: it falls along half a cosine; or it is constant until the last tenth of the "
        "run, so that a run may be trained on.",
        resumes=True,
    ),
]
DecaySetting: TypeAlias = Annotated[
    float, Setting("Weight decay of matrices.", ge=0, expected="a number of at least 0", resumes=True)
]
ClipSetting: TypeAlias = Annotated[
    float, Setting("The largest global norm of a gradient.", gt=0, expected="a number above 0", resumes=True)
]
TokenDtypeSetting: TypeAlias = Annotated[Literal["uint16", "uint32"], Setting("The dtype of .bin files.")]
CheckpointSetting: TypeAlias = Annotated[
    bool, Setting("The backward pass computes each layer again, instead of keeping its activations.")
]


@checked("Setting task.{}", _rules, remedy=REMEDY)
def task(
    *,
    layers: Annotated[int, Setting("Layers of the model.", ge=1, expected=COUNT)] = 2,
    width: Annotated[int, Setting("Width of the model: a multiple of twice `heads`.", ge=1, expected=COUNT)] = 64,
    heads: Annotated[int, Setting("Heads of attention of each layer.", ge=1, expected=COUNT)] = 4,
    context: Annotated[int, Setting("Tokens of a sequence.", ge=1, expected=COUNT)] = 64,
    tied: Annotated[bool, Setting("The output head is the token embedding.")] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16"], Setting("The dtype of the computation; parameters are float32.")
    ] = "float32",
    batch: BatchSetting = None,
    lr: RateSetting = None,
    warmup: WarmupSetting = 0.2,
    schedule: ScheduleSetting = "cosine",
    weight_decay: DecaySetting = 0.1,
    clip: ClipSetting = 1.0,
    optimizer: Annotated[
        Literal["adamw", "muon"],
        Setting("Muon for the matrices of the layers (routers apart), with AdamW for all else; or AdamW for all."),
    ] = "muon",
    data: Annotated[
        tuple[str, ...],
        Setting("Files and folders, read as bytes; or .npy and .bin files of token ids. Default: Python's library."),
    ] = (),
    vocabulary: Annotated[
        int | None,
        Setting("How many token ids there are, for files of them.", ge=2, lt=1 << 31, expected="from 2 to 2^31 - 1"),
    ] = None,
    token_dtype: TokenDtypeSetting = "uint16",
    experts: Annotated[
        int,
        Setting(
            "Experts in the feed-forward half of each layer; 0 makes it dense.",
            ge=0,
            expected="an integer of at least 0",
        ),
    ] = 0,
    experts_chosen: Annotated[int, Setting("The experts to which each token goes.", ge=1, expected=COUNT)] = 2,
    experts_slack: Annotated[
        float,
        Setting(
            "The room of an expert, in even shares of the tokens of a sequence.", gt=0, expected="a number above 0"
        ),
    ] = 1.25,
    experts_balance: Annotated[
        float,
        Setting(
            "The weight in the training loss of the imbalance of tokens over experts, reported as `balance`.",
            ge=0,
            expected="a number of at least 0",
        ),
    ] = 0.01,
    stacked: Annotated[
        bool, Setting("All layers are rows of the same tensors, compiled once: for deep models.")
    ] = False,
    checkpoint: CheckpointSetting = False,
    stages: Annotated[
        int,
        Setting(
            "Groups of successive layers, each on its own devices of an island; needs `stacked`.",
            ge=1,
            expected=COUNT,
        ),
    ] = 1,
    microbatches: Annotated[
        int | None,
        Setting(
            "Parts of a batch that pass the layers one after the other: a multiple of `stages`. Default: the most of "
            "4, 3, 2 and 1 for each stage that divide the batch.",
            ge=1,
            expected=COUNT,
        ),
    ] = None,
    paths: Annotated[
        tuple[int, ...],
        Setting("Of a model made of modules: how many there are for each level, into which the layers are cut evenly."),
    ] = (),
    router: Annotated[
        str | None,
        Setting("The file of `isthmus route` that says which documents each path trains on. Default: all of them."),
    ] = None,
    evaluation_windows: WindowsSetting = None,
    sets: SetsSetting = None,
) -> Task:
    """The language model as a Task. ConfigError, with every fault, for a setting out of range and for wrong data.

    The evaluation is on windows of held-out text (`ops.data.held_out`), the same in every run; of shards, on as many
    as its share of held-out text for each path, of its own.
    """
    sequences = BATCHES[0] if batch is None else batch if isinstance(batch, int) else tuple(batch)
    windows: Windows | PathWindows
    routed_by = ""
    try:
        found = find(data).files
        if router is None:
            corpus = _load(check_bytes(found), vocabulary, token_dtype)
            windows = Windows(corpus, sequences, length=context + 1, held_out=evaluation_windows)
        else:
            shards = sharded_corpus(data, router, math.prod(paths), vocabulary=vocabulary, token_dtype=token_dtype)
            sharded = ShardedWindows(shards, sequences, length=context + 1, held_out=evaluation_windows)
            windows, routed_by = PathWindows(sharded), shards.fingerprint
        read_set = partial(_set_reader, vocabulary, token_dtype, found)
        held_out = text_sets(sets or {}, read_set, windows) if isinstance(windows, Windows) else {}
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error

    from isthmus.ops.model_config import ModelConfig

    config = ModelConfig(
        windows.corpus.vocabulary,
        layers,
        width,
        heads,
        context,
        tied=tied,
        dtype=dtype,
        routing=_routing(experts, experts_chosen, experts_slack, experts_balance),
        stacked=stacked,
        checkpoint=checkpoint,
        microbatches=microbatches,
    )
    rate = rate_default(optimizer, width, sequences) if lr is None else lr
    init, loss = _functions(config)
    return Task(
        init,
        loss,
        windows.batch,
        tokens_per_batch=sequences * context if isinstance(sequences, int) else tuple(n * context for n in sequences),
        optimizer=_optimizer(optimizer, rate, RateSchedule(warmup, schedule), weight_decay, clip),
        evaluation=windows.evaluation_batches,
        extract=windows.extract,
        sets=held_out,
        merge={"embedding": "average", **({} if tied else {"head": "average"}), "**": "rda"},
        stacked=("layers/**",) if stacked else (),
        mesh=AXES_DEFAULT if stages == 1 else (*AXES_DEFAULT, (STAGE, stages)),
        paths=tuple(paths),
        routed_by=routed_by,
        levels={f"layers/{layer}/**": layer * len(paths) // layers for layer in range(layers)} if paths else {},
    )


# The same functions for the same settings: by them jax finds what it has traced and compiled in this process.
@lru_cache(maxsize=4)
def _functions(config: ModelConfig) -> tuple[Any, Any]:
    """Parameters of a key, and the loss of parameters and batch."""
    from isthmus.ops import transformer

    loss = transformer.loss if config.routing is None else transformer.balanced_loss
    return partial(transformer.init, config), partial(loss, config)


@lru_cache(maxsize=4)
def _optimizer(name: str, peak: float, schedule: RateSchedule, weight_decay: float, clip: float) -> Any:
    from isthmus.ops import transformer
    from isthmus.ops.island.optimizer import adamw, muon

    kind = adamw if name == "adamw" else partial(muon, is_hidden=transformer.is_hidden)
    return kind(peak=peak, schedule=schedule, weight_decay=weight_decay, clip=clip)


def _routing(experts: int, chosen: int, slack: float, balance: float) -> Routing | None:
    from isthmus.ops.model_config import Routing

    return Routing(experts, chosen, slack, balance) if experts else None


def model_config(settings: Mapping[str, Any]) -> ModelConfig:
    """The model of a task with these settings, all of them; no data is read."""
    from isthmus.ops.model_config import ModelConfig

    shape = {key: settings[key] for key in ("layers", "width", "heads", "context", "tied", "dtype", "stacked")}
    routing = _routing(*(settings[f"experts{key}"] for key in ("", "_chosen", "_slack", "_balance")))
    return ModelConfig(settings["vocabulary"] or BYTE_VOCABULARY, **shape, routing=routing)


def data_table(settings: Mapping[str, Any]) -> DataTable:
    """What the data of a task with these settings, all of them, are; ConfigError for data that cannot be read."""
    try:
        found = find(settings["data"])
        files, token_dtype = check_bytes(found.files), settings["token_dtype"]
        vocabulary = vocabulary_of(files, settings["vocabulary"])
        tally = DataTally(decode=None if files[0].holds_tokens else _text_of)
        corpus = _load(files, settings["vocabulary"], token_dtype)
        for file in files:
            if file.holds_tokens:
                tally.add_file(file.path, read(file, vocabulary, np.dtype(token_dtype).newbyteorder("<")))
            else:
                tally.add_size(file.path, file.size_bytes, beginning=np.fromfile(file.path, np.uint8, SHOWN_TOKENS))
        for ids in () if files[0].holds_tokens else (*corpus.train.segments, *corpus.evaluation.segments):
            tally.add_ids(ids)
        return tally.table(found)
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error


def _text_of(ids: Any) -> str:
    return bytes(ids).decode(errors="replace")


def is_of_bytes(settings: Mapping[str, Any]) -> bool:
    """Whether the data of a task with these settings are text, whose bytes are tokens; by the names of its files."""
    if settings["vocabulary"] is None:
        return True
    with suppress(DataError):
        return not any(file.holds_tokens for file in find(settings["data"]).files)
    return False


def chosen(settings: Mapping[str, Any], run: RunSize) -> dict[str, Any]:
    """The batch, the rate and the windows of an evaluation for a run, as far as `settings`, all of the task's and in
    their ranges, have None there."""
    unit, context = settings["microbatches"] or settings["stages"], settings["context"]
    batch = settings["batch"] or -(-batch_default(run.tokens, run.learners, context) // unit) * unit
    values = {
        "batch": batch,
        "lr": rate_default(settings["optimizer"], settings["width"], batch),
        "evaluation_windows": windows_default(_parameters(settings), context, run, 1 + len(settings["sets"] or ())),
    }
    return {key: value for key, value in values.items() if settings[key] is None and value is not None}


def _parameters(settings: Mapping[str, Any]) -> int:
    """How many parameters a model has; 0 for a shape that none has, which the task refuses."""
    from isthmus.ops.model_config import parameters_of

    try:
        return parameters_of(model_config(settings))
    except ValueError:
        return 0


RATE_POWER: Final = 0.5


def rate_default(optimizer: str, width: int, batch: int | Sequence[int]) -> float:
    """The peak of the learning rate: for AdamW it falls with the width; both fall with the root of the batch below 8
    sequences, to three digits.

    Muon's was compared at width 64 alone.
    """
    sequences = batch if isinstance(batch, int) else sum(batch) / len(batch)
    peak = 0.012 if optimizer == "muon" else 0.384 / width
    return float(f"{peak * min(sequences / BATCHES[0], 1.0) ** RATE_POWER:.3g}")


@lru_cache(maxsize=2)
def _load(sources: tuple[CorpusFile, ...], vocabulary: int | None, token_dtype: str) -> Corpus:
    """The corpus, read once for all learners of a process; a file that has changed is another Source."""
    return load(sources, vocabulary=vocabulary, token_dtype=token_dtype)


def _set_reader(
    vocabulary: int | None, token_dtype: str, data: Sequence[CorpusFile], path: str
) -> Callable[[], TokenIds]:
    """Reads the held-out set at a path as what `data` are: bytes, or token ids."""
    return partial(_read_set, path, vocabulary, token_dtype, holds_tokens=data[0].holds_tokens)


def _read_set(path: str, vocabulary: int | None, token_dtype: str, *, holds_tokens: bool) -> TokenIds:
    sources = check_bytes(find_set(path).files)
    if other := [source.path for source in sources if source.holds_tokens is not holds_tokens]:
        expected, there = ("token ids", "a text") if holds_tokens else ("text", "token ids")
        do = "Give the set in the form of the data, or leave it out."
        raise DataError("Reading a held-out set", f"{expected}, as the data are", f"{there}, {other[0]}", do)
    return _whole(sources, vocabulary, token_dtype)


@lru_cache(maxsize=SETS_MAX)
def _whole(sources: tuple[CorpusFile, ...], vocabulary: int | None, token_dtype: str) -> TokenIds:
    """All of a set, read once in a process; a file that has changed is another."""
    return whole(sources, vocabulary=vocabulary, token_dtype=token_dtype)
