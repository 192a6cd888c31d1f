"""The shipped task of a model folder: a model as transformers has written it, trained further.

In jax, by our own transformer, where that computes it, and in PyTorch, by transformers, where it does not, or where the
framework is given; a list of frameworks is by slot. Leaves have the folder's names, with / for its dots, and its
shapes, so that a model comes back as it was brought, and islands in both frameworks train one; our transformer, which
multiplies from the other side, sees them transposed, and reads first values leaf by leaf from the mapped files. Text
becomes tokens by the folder's tokenizer, once on a machine (`model_folders.folder_data`). Importing this module imports
neither framework.

With `lora_rank` adapters of low rank are trained in its stead, in PyTorch, by peft: the folder's own weights are
frozen, so that adapters alone are merged, sent and kept.

    isthmus train --model FOLDER --data texts.jsonl
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from isthmus.ops.data.batches import At, Batch, Tokens, TokensPerBatch, Windows, predicted
from isthmus.ops.data.corpus import DataError, TokenIds
from isthmus.ops.data.held_out_sets import text_sets
from isthmus.ops.island.schedule import RateSchedule
from isthmus.programs.evaluations import RunSize, SetsSetting, WindowsSetting, windows_default
from isthmus.programs.language_model import (
    COUNT,
    REMEDY,
    BatchSetting,
    CheckpointSetting,
    ClipSetting,
    DecaySetting,
    RateSetting,
    ScheduleSetting,
    TokenDtypeSetting,
    WarmupSetting,
    rate_default,
)
from isthmus.programs.model_folders import folders, llama, modules
from isthmus.programs.model_folders.adapters import Adapters, alpha_of
from isthmus.programs.model_folders.folder_data import FolderData, TextMarks, marks_of
from isthmus.programs.model_folders.tokens import Marked
from isthmus.programs.reading.forms import ROWS
from isthmus.programs.reading.found import FoundFiles, find_set
from isthmus.programs.reading.table import DataTable
from isthmus.programs.settings import Setting, checked
from isthmus.programs.sweeps import BATCHES, batch_default
from isthmus.programs.task import SETS_MAX, AnyTask, Task, set_name_faults
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.refusals import reason, remedy

CONTEXT_MAX: Final = 1024
"""Tokens of a sequence, where a model could take more, and no other number is given."""
RATE_SHARE: Final = 0.1
"""The default rate as a share of that of a model that begins at random; none was compared."""
ADAPTER_RATE: Final = 1e-3
"""The default rate of adapters, of every rank; `docs/how-to/tune-a-model.md` has what was compared."""
OPTIMIZER: Final = "adamw"
JAX: Final = "jax"
TORCH: Final = "torch"
READS: Final[Mapping[str, Any]] = MappingProxyType({"bos": "folder", "eos": "folder", "special_in_text": False})
"""Settings of how texts become tokens, of runs that begin now."""
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
    yield from set_name_faults(values["sets"] or (), "Setting task.sets")
    if (day := values["day"]) is not None and not _is_day(day):
        do = "Write it so, or leave it out."
        yield Fault("Setting task.day", "a day such as 2026-03-31", repr(day), do)
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
    schedule: ScheduleSetting = "cosine",
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
    sets: SetsSetting = None,
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
    day: Annotated[
        str | None,
        Setting(
            "What the folder's chat template takes for today (strftime_now), such as 2026-03-31. Default: the day of "
            "the start, where the template asks for it."
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
    marks = TextMarks(bos, eos, special_in_text, day)
    texts = FolderData(Path(folder), facts.vocabulary, data, column, prompt, token_dtype, marks)
    windows = _windows(texts, sequences, length, evaluation_windows)
    terms = {
        "tokens_per_batch": _tokens_per_batch(sequences, length, is_counted=windows.is_marked),
        "evaluation": windows.evaluation_batches,
        "extract": windows.extract,
        "sets": text_sets(sets or {}, partial(_set_reader, texts), windows),
    }
    peak = _rate(facts.width, sequences, lora_rank) if lr is None else lr
    steps = {"peak": peak, "weight_decay": weight_decay, "clip": clip}
    make = partial(_in_torch, adapters=adapters) if facts.framework == TORCH else _in_jax
    return make(
        Path(folder), windows, terms, steps, dtype=dtype, schedule=RateSchedule(warmup, schedule), checkpoint=checkpoint
    )


def _tokens_per_batch(sequences: int | tuple[int, ...], length: int, *, is_counted: bool) -> TokensPerBatch:
    """What a batch counts for: all that it predicts, which differs where some tokens are not to be predicted."""
    sizes = sequences * length if isinstance(sequences, int) else tuple(n * length for n in sequences)
    return Tokens(predicted, sizes if isinstance(sizes, int) else max(sizes)) if is_counted else sizes


def held_out(settings: Mapping[str, Any], folder: Path) -> Iterator[Batch]:
    """The batches of the evaluation of a task with these settings, all of them.

    `folder` has the configuration and the tokenizer of the model folder. ConfigError for data that cannot be used.
    """
    facts = _facts(folder, _framework(settings["framework"], settings["lora_rank"]), _doing(str(folder)))
    sizes = (settings[key] for key in ("batch", "context", "evaluation_windows"))
    windows = _windows(_data(folder, facts, settings), *sizes)
    return (windows.batch(At(0, 0, position, "evaluation")) for position in range(windows.evaluation_batches))


def _windows(data: FolderData, sequences: int | tuple[int, ...], length: int, held_out: int | None) -> Windows:
    """The batches; ConfigError for data that cannot be used."""
    try:
        corpus, is_marked = data.read()
        return Windows(corpus, sequences, length=length + 1, is_marked=is_marked, held_out=held_out)
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error


def _in_jax(
    path: Path,
    windows: Windows,
    terms: Mapping[str, Any],
    steps: Mapping[str, float],
    *,
    dtype: str | None,
    schedule: RateSchedule,
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
        optimizer=adamw(schedule=schedule, **steps),
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
    schedule: RateSchedule,
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
        rate=schedule.share,
        merge={**({} if adapters else dict.fromkeys(model.embeddings(doing), "average")), "**": "rda"},
        **terms,
    )


def chosen(settings: Mapping[str, Any], run: RunSize) -> dict[str, Any]:
    """The framework, the context, the batch, the rate and the windows of an evaluation of a run, the alpha of adapters,
    and how texts and chats become tokens, as far as `settings`, which are in their ranges, have None there."""
    path, doing, rank = Path(settings["folder"]), _doing(settings["folder"]), settings["lora_rank"]
    facts = _facts(path, _framework(settings["framework"], rank), doing)
    context = _length(settings["context"], facts.context)
    batch = settings["batch"] or batch_default(run.tokens, run.learners, context)
    texts = 1 + len(settings["sets"] or ())
    windows = windows_default(folders.parameters_in(path, doing), context, run, texts)
    values = {
        "framework": facts.framework,
        "context": context,
        "batch": batch,
        "lr": _rate(facts.width, batch, rank),
        "lora_alpha": None if rank is None else alpha_of(rank),
        "evaluation_windows": windows,
        "day": _day(path, doing),
        **READS,
    }
    return {key: value for key, value in values.items() if settings[key] is None and value is not None}


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _day(folder: Path, doing: str) -> str | None:
    """Today, where the folder's chat template may ask for it: all processes and lives of a run read alike."""
    try:
        return folders.day_of_templates(folders.tokenizer_documents_in(folder)) or None
    except OSError as error:
        raise ConfigError(doing, "files that can be read", reason(error), remedy(error, "Look there.")) from None


class _Facts(NamedTuple):
    """What settings follow from: of a folder, in whatever framework."""

    framework: str
    vocabulary: int
    width: int
    context: int | None


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


def data_table(settings: Mapping[str, Any]) -> DataTable:
    """What the data of a task with these settings, all of them, are; ConfigError for data that cannot be read."""
    folder, doing = Path(settings["folder"]), _doing(settings["folder"])
    facts = _facts(folder, _framework(settings["framework"], settings["lora_rank"]), doing)
    try:
        return _data(folder, facts, settings).table()
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error


def _data(folder: Path, facts: _Facts, settings: Mapping[str, Any]) -> FolderData:
    data, column, prompt, token_dtype = (settings[key] for key in ("data", "column", "prompt", "token_dtype"))
    return FolderData(folder, facts.vocabulary, tuple(data), column, prompt, token_dtype, marks_of(settings))


def _set_reader(data: FolderData, path: str) -> Callable[[], TokenIds]:
    """Reads the held-out set at a path as the data are read."""
    of_set = replace(data, data=(path,))
    return lambda: _read_set(of_set, find_set(path, has_documents=True))


@lru_cache(maxsize=SETS_MAX)
def _read_set(data: FolderData, found: FoundFiles) -> TokenIds:
    """All tokens of a set, mapped once in a process."""
    return data.whole(found)


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
