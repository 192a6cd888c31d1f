"""The shipped task of a model folder: a model as transformers has written it, trained further.

In jax, by our own transformer, where that computes it, and in PyTorch, by transformers, where it does not, or where the
framework is given; a list of frameworks is by slot. Leaves have the folder's names, with / for its dots, and its
shapes, so that a model comes back as it was brought, and islands in both frameworks train one; our transformer, which
multiplies from the other side, sees them transposed, and reads first values leaf by leaf from the mapped files. Text
becomes tokens by the folder's tokenizer, in every process that needs batches. Importing this module imports neither
framework.

With `lora_rank` adapters of low rank are trained in its stead, in PyTorch, by peft: the folder's own weights are
frozen, so that adapters alone are merged, sent and kept.

    isthmus train --model FOLDER --data texts.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from isthmus.ops.data.batches import At, Batch, Tokens, TokensPerBatch, Windows, predicted
from isthmus.ops.data.corpus import Corpus, DataError, load, read, split_of
from isthmus.ops.island.schedule import share_of_peak
from isthmus.programs.evaluations import RunSize, WindowsSetting, windows_default
from isthmus.programs.language_model import (
    COUNT,
    REMEDY,
    BatchSetting,
    CheckpointSetting,
    ClipSetting,
    DecaySetting,
    RateSetting,
    TokenDtypeSetting,
    WarmupSetting,
    rate_default,
)
from isthmus.programs.model_folders import folders, llama, modules
from isthmus.programs.model_folders.adapters import Adapters, alpha_of
from isthmus.programs.model_folders.texts import ids_of
from isthmus.programs.model_folders.tokens import FolderTokens, Marked
from isthmus.programs.reading.forms import ROWS
from isthmus.programs.reading.found import FoundFiles, find
from isthmus.programs.reading.table import DataTable, DataTally, SpecialIds, lost_share
from isthmus.programs.settings import Setting, checked
from isthmus.programs.sweeps import BATCHES, batch_default
from isthmus.programs.task import AnyTask, Task
from isthmus.runtime.errors import ConfigError, Fault

CONTEXT_MAX: Final = 1024
"""Tokens of a sequence, where a model could take more, and no other number is given."""
RATE_SHARE: Final = 0.1
"""The default rate as a share of that of a model that begins at random; none was compared."""
ADAPTER_RATE: Final = 1e-3
"""The default rate of adapters, of every rank; `docs/how-to/tune-a-model.md` has what was compared."""
OPTIMIZER: Final = "adamw"
JAX: Final = "jax"
TORCH: Final = "torch"
Framework: TypeAlias = Literal["jax", "torch"]
FrameworkSetting: TypeAlias = Annotated[
    Framework | tuple[Framework, ...] | None,
    Setting(
        "jax (our own transformer, the Llama family) or torch (transformers), or a list with that of each slot; slots "
        "beyond its end have the last, and the home the first. Default: jax, where that computes the model."
    ),
]


def _rules(values: Mapping[str, Any]) -> Iterator[Fault]:
    if not values["data"]:
        do = f"Name files or folders with --data: text, rows ({ROWS}), or token ids in .npy and .bin."
        yield Fault("Setting task.data", "the data that a model folder is trained on", "none", do)
    if values["lora_rank"] is None:
        for key in ("lora_alpha", "lora_modules"):
            if values[key]:
                do = f"Set task.lora_rank, such as 8, or leave task.{key} out."
                yield Fault(f"Setting task.{key}", "task.lora_rank beside it", "none", do)
    elif JAX in frameworks_of(values["framework"]):
        do = "Set task.framework to torch, or leave it out; or leave task.lora_rank out."
        yield Fault("Setting task.framework", "torch alone, in which adapters are trained (task.lora_rank)", JAX, do)


@checked("Setting task.{}", _rules, remedy=REMEDY)
def task(
    *,
    folder: Annotated[str, Setting("The model folder, as transformers writes it: `--model FOLDER`.")],
    data: Annotated[
        tuple[str, ...],
        Setting(
            "Files and folders of text, or of rows in .jsonl, .ndjson, .json, .parquet, .arrow, .csv and .tsv, each "
            "also as .gz or .zst; or .npy and .bin files of token ids."
        ),
    ] = (),
    column: Annotated[
        str,
        Setting(
            "The field or column of rows that has the text, or the messages of a chat. Of rows without it messages "
            "are read, or else prompt and completion."
        ),
    ] = "text",
    prompt: Annotated[
        str | None,
        Setting("The field or column that has what comes before the text; its tokens are read, and not trained on."),
    ] = None,
    framework: FrameworkSetting = None,
    context: Annotated[
        int | None, Setting("Tokens of a sequence. Default: the model's, 1024 at most.", ge=1, expected=COUNT)
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        Setting("The dtype of the computation. Default: bfloat16 for a folder in it, else float32."),
    ] = None,
    batch: BatchSetting = None,
    lr: RateSetting = None,
    warmup: WarmupSetting = 0.2,
    weight_decay: DecaySetting = 0.1,
    clip: ClipSetting = 1.0,
    token_dtype: TokenDtypeSetting = "uint16",
    checkpoint: CheckpointSetting = False,
    lora_rank: Annotated[
        int | None,
        Setting(
            "Train adapters of this rank (LoRA, by peft, in torch) in place of the weights, which stay as they are. "
            "Default: none, all weights are trained.",
            ge=1,
            expected=COUNT,
        ),
    ] = None,
    lora_alpha: Annotated[
        float | None,
        Setting(
            "What an adapter adds is multiplied by this, divided by the rank. Default: twice the rank.",
            gt=0,
            expected="a number above 0",
        ),
    ] = None,
    lora_modules: Annotated[
        tuple[str, ...],
        Setting(
            "The linear layers that have an adapter: names as in the folder, or their last parts, such as q_proj. "
            "Default: all but the output head."
        ),
    ] = (),
    evaluation_windows: WindowsSetting = None,
    bos: Annotated[
        Marked | None,
        Setting(
            "Whether a text begins with the bos token: folder, as transformers' tokenizer of the folder begins a "
            "text; on; or off. Default: folder."
        ),
    ] = None,
    eos: Annotated[
        Marked | None,
        Setting(
            "Whether a text ends with the eos token: folder, if the folder names one, in generation_config.json or "
            "else in config.json; on; or off. Default: folder."
        ),
    ] = None,
    special_in_text: Annotated[
        bool | None,
        Setting(
            "A document that spells a special token, such as </s>, has that token there, and not those of its letters. "
            "Default: false."
        ),
    ] = None,
) -> AnyTask:
    """The model of a folder as a task. ConfigError for a folder or data that cannot be used.

    None for `special_in_text` is of runs that were begun before there was such a setting: they go on as they read, with
    special tokens in texts, nothing before a document, and the eos token of config.json behind it.
    """
    adapters = Adapters.of({"lora_rank": lora_rank, "lora_alpha": lora_alpha, "lora_modules": lora_modules})
    facts = _facts(Path(folder), _framework(framework, lora_rank), _doing(folder))
    sequences = BATCHES[0] if batch is None else batch if isinstance(batch, int) else tuple(batch)
    length = _length(context, facts.context)
    marks = TextMarks(bos, eos, special_in_text)
    windows = _windows(
        Path(folder), facts, data, sequences, length, column, prompt, token_dtype, evaluation_windows, marks
    )
    terms = {
        "tokens_per_batch": _tokens_per_batch(sequences, length, is_counted=windows.is_marked),
        "evaluation": windows.evaluation_batches,
        "extract": windows.extract,
    }
    peak = _rate(facts.width, sequences, lora_rank) if lr is None else lr
    steps = {"peak": peak, "weight_decay": weight_decay, "clip": clip}
    make = partial(_in_torch, adapters=adapters) if facts.framework == TORCH else _in_jax
    return make(Path(folder), windows, terms, steps, dtype=dtype, warmup=warmup, checkpoint=checkpoint)


def _tokens_per_batch(sequences: int | tuple[int, ...], length: int, *, is_counted: bool) -> TokensPerBatch:
    """What a batch counts for: all that it predicts, which differs where some tokens are not to be predicted."""
    sizes = sequences * length if isinstance(sequences, int) else tuple(n * length for n in sequences)
    return Tokens(predicted, sizes if isinstance(sizes, int) else max(sizes)) if is_counted else sizes


def held_out(settings: Mapping[str, Any], folder: Path) -> Iterator[Batch]:
    """The batches of the evaluation of a task with these settings, all of them.

    `folder` has the configuration and the tokenizer of the model folder. ConfigError for data that cannot be used.
    """
    facts = _facts(folder, _framework(settings["framework"], settings["lora_rank"]), _doing(str(folder)))
    keys = ("data", "batch", "context", "column", "prompt", "token_dtype", "evaluation_windows")
    values = [*(settings.get(key) for key in keys), marks_of(settings)]
    windows = _windows(folder, facts, *values)  # type: ignore[arg-type]
    return (windows.batch(At(0, 0, position, "evaluation")) for position in range(windows.evaluation_batches))


def _windows(
    folder: Path,
    facts: _Facts,
    data: Sequence[str],
    sequences: int | tuple[int, ...],
    length: int,
    column: str,
    prompt: str | None,
    token_dtype: str,
    held_out: int | None,
    marks: TextMarks,
) -> Windows:
    """The batches; ConfigError for data that cannot be used."""
    try:
        data_read = _read_data(_found(data), str(folder), column, prompt, token_dtype, facts.vocabulary, marks)
        is_marked = data_read.tally.is_marked
        return Windows(data_read.corpus, sequences, length=length + 1, is_marked=is_marked, held_out=held_out)
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error


def _in_jax(
    path: Path,
    windows: Windows,
    terms: Mapping[str, Any],
    steps: Mapping[str, float],
    *,
    dtype: str | None,
    warmup: float,
    checkpoint: bool,
) -> AnyTask:
    """The task by our own transformer: leaves have the folder's names, and its dtype each."""
    from isthmus.ops.island.optimizer import adamw

    doing = _doing(str(path))
    model = folders.read(path, doing)
    computed = dtype or ("bfloat16" if set(model.dtypes.values()) == {"bfloat16"} else "float32")
    config = replace(model.config, dtype=computed, checkpoint=checkpoint)
    return Task(
        partial(_init, config, tuple(model.dtypes.items())),
        partial(_loss, config),
        windows.batch,
        optimizer=adamw(warmup=warmup, **steps),
        merge={
            "model/embed_tokens/weight": "average",
            **({} if config.tied else {"lm_head/weight": "average"}),
            "**": "rda",
        },
        load=partial(_leaf, path, doing),
        **terms,
    )


def _in_torch(
    path: Path,
    windows: Windows,
    terms: Mapping[str, Any],
    steps: Mapping[str, float],
    *,
    dtype: str | None,
    warmup: float,
    checkpoint: bool,
    adapters: Adapters | None,
) -> AnyTask:
    """The task by transformers: leaves have the names of its module, and one dtype; or of its adapters, in float32."""
    doing = _doing(str(path))
    model = modules.read(path, doing)
    if model.context is not None and windows.length - 1 > model.context:
        do = "Set task.context to fewer."
        raise ConfigError("Setting task.context", f"at most {model.context}, the model's", str(windows.length - 1), do)
    kind = model.dtype(doing)
    if adapters is not None:
        adapters.check(model, doing)

    from isthmus.ops.island.torch_optimizer import ClippedAdamW
    from isthmus.programs.torch_task import TorchTask

    return TorchTask(
        partial(_module, path, kind, doing, checkpoint=checkpoint, adapters=adapters),
        partial(_module_loss, dtype or ("bfloat16" if kind == "bfloat16" else "float32")),
        windows.batch,
        optimizer=partial(ClippedAdamW, **steps),
        rate=partial(share_of_peak, warmup=warmup),
        merge={**({} if adapters else dict.fromkeys(model.embeddings(doing), "average")), "**": "rda"},
        **terms,
    )


def chosen(settings: Mapping[str, Any], run: RunSize) -> dict[str, Any]:
    """The framework, the context, the batch, the rate and the windows of an evaluation of a run, the alpha of adapters,
    and how texts become tokens, as far as `settings`, which are in their ranges, have None there."""
    path, doing, rank = Path(settings["folder"]), _doing(settings["folder"]), settings["lora_rank"]
    facts = _facts(path, _framework(settings["framework"], rank), doing)
    context = _length(settings["context"], facts.context)
    batch = settings["batch"] or batch_default(run.tokens, run.learners, context)
    windows = windows_default(folders.parameters_in(path, doing), context, run)
    values = {
        "framework": facts.framework,
        "context": context,
        "batch": batch,
        "lr": _rate(facts.width, batch, rank),
        "lora_alpha": None if rank is None else alpha_of(rank),
        "evaluation_windows": windows,
        "bos": "folder",
        "eos": "folder",
        "special_in_text": False,
    }
    return {key: value for key, value in values.items() if settings[key] is None and value is not None}


class _Facts(NamedTuple):
    """What settings follow from: of a folder, in whatever framework."""

    framework: str
    vocabulary: int
    width: int
    context: int | None


class TextMarks(NamedTuple):
    """How a document becomes tokens, by the settings of these names."""

    bos: Marked | None
    eos: Marked | None
    special_in_text: bool | None

    def tokens(self, folder: Path, vocabulary: int, doing: str) -> FolderTokens:
        """The tokenizer of a folder; ConfigError where there is none, or it has no such token."""
        is_former = self.special_in_text is None
        bos = self.bos or ("off" if is_former else "folder")
        special = is_former or bool(self.special_in_text)
        return FolderTokens(folder, vocabulary, doing, bos=bos, special_in_text=special, is_former=is_former)

    def end(self, folder: Path, vocabulary: int, doing: str) -> int | None:
        """The token that ends a document; the first, where there are several. ConfigError for one that the model does
        not have."""
        document = folders.document_in(folder, doing)
        former = next(iter(folders.ends_in(document)), None)
        end = former if self.special_in_text is None else folders.document_end_in(folder, document, doing)
        where = f"{folders.GENERATION} or {folders.CONFIG}"
        if self.eos == "off" or (end is None and self.eos != "on"):
            return None
        if end is None:
            do = "Set task.eos to folder, or leave it out."
            raise ConfigError(doing, f"an eos_token_id in {where}", "none", do)
        if not 0 <= end < vocabulary:
            do = f"Correct eos_token_id in {where}; null is for a model without."
            raise ConfigError(doing, f"an eos_token_id below {vocabulary}, the size of the vocabulary", str(end), do)
        return end


def marks_of(settings: Mapping[str, Any]) -> TextMarks:
    """How documents become tokens, by the settings of a task."""
    return TextMarks(settings.get("bos"), settings.get("eos"), settings.get("special_in_text"))


def _facts(path: Path, framework: str | tuple[str, ...] | None, doing: str) -> _Facts:
    """Of the home's framework, where each slot has one."""
    document = folders.document_in(path, doing)
    framework = next(iter(frameworks_of(framework)), None) or framework_of(document)
    model = llama.config_of(document, doing) if framework == JAX else modules.read(path, doing)
    return _Facts(framework, model.vocabulary, model.width, model.context)


def frameworks_of(setting: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The frameworks that a setting names, by slot."""
    return (setting,) if isinstance(setting, str) else setting or ()


def _framework(setting: Framework | tuple[Framework, ...] | None, rank: int | None) -> Any:
    """The setting of the framework, where adapters decide what it does not say."""
    return TORCH if rank is not None and not setting else setting


def framework_of(document: Mapping[str, Any]) -> str:
    """The framework in which the model of a config.json is computed: jax, if our own transformer can."""
    return JAX if llama.is_computed_here(document) else TORCH


def _doing(folder: str) -> str:
    return f"Reading the model folder {folder}"


def _length(context: int | None, most: int | None) -> int:
    return min(most or CONTEXT_MAX, CONTEXT_MAX) if context is None else context


def _rate(width: int, sequences: Any, rank: int | None) -> float:
    """The default rate: that of adapters, of a rank, follows neither from it nor from the model."""
    if rank is not None:
        return ADAPTER_RATE
    return float(f"{RATE_SHARE * rate_default(OPTIMIZER, width, sequences):.3g}")


class _Read(NamedTuple):
    """Data that were read, and what was counted meanwhile; `tokens`, of texts: what made them tokens."""

    corpus: Corpus
    tally: DataTally
    tokens: FolderTokens | None = None


def data_table(settings: Mapping[str, Any]) -> DataTable:
    """What the data of a task with these settings, all of them, are; ConfigError for data that cannot be read."""
    folder, doing = Path(settings["folder"]), _doing(settings["folder"])
    facts = _facts(folder, _framework(settings["framework"], settings["lora_rank"]), doing)
    options = (settings[key] for key in ("column", "prompt", "token_dtype"))
    try:
        found = _found(settings["data"])
        read_data = _read_data(found, str(folder), *options, facts.vocabulary, marks_of(settings))
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error
    if read_data.tokens is None:
        return read_data.tally.table(found)
    return read_data.tally.table(found, lost_share(map(read_data.tokens.there_and_back, read_data.tally.samples)))


def _found(data: Sequence[str]) -> FoundFiles:
    return find(data, are_texts=True, are_rows=True)


@lru_cache(maxsize=2)
def _read_data(
    found: FoundFiles,
    folder: str,
    column: str,
    prompt: str | None,
    token_dtype: str,
    vocabulary: int,
    marks: TextMarks,
) -> _Read:
    """The tokens of all files, made once in a process."""
    doing, path = "Reading the training data", Path(folder)
    if held := [file for file in found.files if file.holds_tokens]:
        if prompt is not None:
            do = "Leave task.prompt out."
            raise ConfigError(doing, f"prompts in rows of {ROWS}", f"{held[0].path}, token ids", do)
        corpus = load(found.files, vocabulary=vocabulary, token_dtype=token_dtype)
        tally = DataTally()
        if (path / folders.TOKENIZER).is_file():
            tokens = marks.tokens(path, vocabulary, doing)
            tally = DataTally(_special(tokens, marks.end(path, vocabulary, _doing(folder))), tokens.decode)
        for file in held:
            tally.add_file(file.path, read(file, vocabulary, np.dtype(token_dtype).newbyteorder("<")))
        return _Read(corpus, tally)
    tokens, end = marks.tokens(path, vocabulary, doing), marks.end(path, vocabulary, _doing(folder))
    begins_with, ends_with = (tuple(map(tokens.piece, ids)) for ids in (tokens.begin, () if end is None else (end,)))
    stops = folders.stops_in(path, folders.document_in(path, _doing(folder)), _doing(folder))
    tally = DataTally(_special(tokens, end), tokens.decode, begins_with, ends_with, stops)
    fields = {**({} if prompt is None else {"task.prompt": prompt}), "task.column": column}
    ids = [ids_of(Path(file.path), fields, tokens, end, doing, tally) for file in found.files]
    return _Read(split_of(ids, vocabulary), tally, tokens)


def _special(tokens: FolderTokens, end: int | None) -> SpecialIds:
    """The ids of pads and of unknown letters, where these do not begin or end documents, too: no count tells these
    apart."""
    marks = {*tokens.begin, end}
    return SpecialIds(*(None if id in marks else id for id in (tokens.pad, tokens.unknown)))


def _leaf(folder: Path, doing: str, path: str, _: Any) -> Any:
    """The first value of a leaf."""
    return _opened(folder, doing).tensor(path.replace("/", "."))


@lru_cache(maxsize=1)
def _opened(folder: Path, doing: str) -> Any:
    return folders.read(folder, doing)


def _init(config: Any, dtypes: tuple[tuple[str, str], ...], key: Any) -> dict[str, Any]:
    """A model of the folder's layout that begins at random: its shapes, and the values of what is not loaded."""
    from isthmus.ops import transformer
    from isthmus.ops.exchange.parameter_trees import named_leaves

    tensors = llama.theirs(config, dict(named_leaves(transformer.init(config, key))))
    return llama.nested({name.replace(".", "/"): tensors[name].astype(dtype) for name, dtype in dtypes})


def _loss(config: Any, params: Mapping[str, Any], batch: dict[str, Any]) -> Any:
    from isthmus.ops import transformer
    from isthmus.ops.exchange.parameter_trees import named_leaves

    tensors = {name.replace("/", "."): leaf for name, leaf in named_leaves(params)}
    losses = transformer.token_losses(config, llama.ours(config, tensors), batch["tokens"])
    return _weighted(losses, batch)


def _module(path: Path, dtype: str, doing: str, *, checkpoint: bool, adapters: Adapters | None = None) -> Any:
    """The module of a folder, with its tensors, and adapters beside them."""
    module = modules.read(path, doing).load(dtype, doing)
    if checkpoint:
        if not module.supports_gradient_checkpointing:
            do = "Leave task.checkpoint out."
            raise ConfigError(doing, "a model that can compute its layers again", type(module).__name__, do)
        with modules.quiet():  # Later versions have another name for it.
            module.gradient_checkpointing_enable()
    return module if adapters is None else adapters.added_to(module, path, doing)


def _module_loss(dtype: str, module: Any, batch: Mapping[str, Any]) -> Any:
    return _weighted(modules.token_losses(module, batch["tokens"], dtype), batch)


def _weighted(losses: Any, batch: Mapping[str, Any]) -> Any:
    """The loss of a batch, from those of its tokens, in whatever framework."""
    return (losses * batch["weights"]).sum() if "weights" in batch else losses.mean()
