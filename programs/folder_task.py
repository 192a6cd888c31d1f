"""The shipped task of a model folder: a model of the Llama family, as transformers has written it, trained further.

The leaves have the folder's names, with / for its dots, its shapes and its dtypes, so that a model comes back as it was
brought; the transformer, which multiplies from the other side, sees them transposed. First values are read leaf by leaf
from the mapped files. Text becomes tokens by the folder's tokenizer, in every process that needs batches.

    isthmus train --model FOLDER --data texts.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from isthmus.ops.data.batches import Windows
from isthmus.ops.data.corpus import Corpus, CorpusFile, DataError, find, load, split_of
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
from isthmus.programs.settings import Setting, checked
from isthmus.programs.sweeps import BATCHES, batch_default
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError, Fault

CONTEXT_MAX: Final = 1024
"""Tokens of a sequence, where a model could take more, and no other number is given."""
RATE_SHARE: Final = 0.1
"""The default rate as a share of that of a model that begins at random; none was compared."""
OPTIMIZER: Final = "adamw"


def _rules(values: Mapping[str, Any]) -> Iterator[Fault]:
    if not values["data"]:
        do = "Name files or folders with --data: text, .jsonl, .parquet, or token ids in .npy and .bin."
        yield Fault("Setting task.data", "the data that a model folder is trained on", "none", do)


@checked("Setting task.{}", _rules, remedy=REMEDY)
def task(
    *,
    folder: Annotated[str, Setting("The model folder, as transformers writes it: `--model FOLDER`.")],
    data: Annotated[
        tuple[str, ...], Setting("Files and folders of text, .jsonl, .parquet; or .npy and .bin files of token ids.")
    ] = (),
    column: Annotated[str, Setting("The field of .jsonl and the column of .parquet files that has the text.")] = "text",
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
) -> Task:
    """The model of a folder as a Task. ConfigError for a folder or data that cannot be used."""
    from dataclasses import replace

    from isthmus.ops.island.optimizer import adamw
    from isthmus.programs.model_folders import folders

    doing = f"Reading the model folder {folder}"
    path = Path(folder)
    model = folders.read(path, doing)
    computed = dtype or ("bfloat16" if set(model.dtypes.values()) == {"bfloat16"} else "float32")
    config = replace(model.config, dtype=computed, checkpoint=checkpoint)
    length = _length(context, config.context)
    sequences = BATCHES[0] if batch is None else batch if isinstance(batch, int) else tuple(batch)
    try:
        corpus = _corpus(find(data), folder, column, token_dtype, config.vocabulary, _end(model.document))
        windows = Windows(corpus, sequences, length=length + 1)
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error
    return Task(
        partial(_init, config, tuple(model.dtypes.items())),
        partial(_loss, config),
        windows.batch,
        tokens_per_batch=sequences * length if isinstance(sequences, int) else tuple(n * length for n in sequences),
        optimizer=adamw(
            peak=_rate(config.width, sequences) if lr is None else lr,
            warmup=warmup,
            weight_decay=weight_decay,
            clip=clip,
        ),
        evaluation=windows.evaluation_batches,
        merge={
            "model/embed_tokens/weight": "average",
            **({} if config.tied else {"lm_head/weight": "average"}),
            "**": "rda",
        },
        load=partial(_leaf, path, doing),
    )


def chosen(settings: Mapping[str, Any], tokens: int, learners: int) -> dict[str, Any]:
    """The context, the batch and the rate of a run of so many tokens, as far as `settings` have None there."""
    from isthmus.programs.model_folders import folders

    config = folders.read(Path(settings["folder"]), f"Reading the model folder {settings['folder']}").config
    context = _length(settings["context"], config.context)
    batch = settings["batch"] or batch_default(tokens, learners, context)
    values = {"context": context, "batch": batch, "lr": _rate(config.width, batch)}
    return {key: value for key, value in values.items() if settings[key] is None}


def _length(context: int | None, most: int) -> int:
    return min(most, CONTEXT_MAX) if context is None else context


def _rate(width: int, sequences: Any) -> float:
    return float(f"{RATE_SHARE * rate_default(OPTIMIZER, width, sequences):.3g}")


def _end(document: Mapping[str, Any]) -> int | None:
    """The token that ends a text; the first, where there are several."""
    ends = document.get("eos_token_id")
    end = ends[0] if isinstance(ends, list) and ends else ends
    return end if isinstance(end, int) else None


@lru_cache(maxsize=2)
def _corpus(
    sources: tuple[CorpusFile, ...], folder: str, column: str, token_dtype: str, vocabulary: int, end: int | None
) -> Corpus:
    """The tokens of all files, made once in a process."""
    from isthmus.programs.model_folders.texts import ids_of
    from isthmus.programs.model_folders.tokens import FolderTokens

    if any(source.holds_tokens for source in sources):
        return load(sources, vocabulary=vocabulary, token_dtype=token_dtype)
    doing = "Reading the training data"
    tokens = FolderTokens(Path(folder), vocabulary, doing)
    return split_of([ids_of(Path(source.path), column, tokens, end, doing) for source in sources], vocabulary)


def _leaf(folder: Path, doing: str, path: str, _: Any) -> Any:
    """The first value of a leaf."""
    return _opened(folder, doing).tensor(path.replace("/", "."))


@lru_cache(maxsize=1)
def _opened(folder: Path, doing: str) -> Any:
    from isthmus.programs.model_folders import folders

    return folders.read(folder, doing)


def _init(config: Any, dtypes: tuple[tuple[str, str], ...], key: Any) -> dict[str, Any]:
    """A model of the folder's layout that begins at random: its shapes, and the values of what is not loaded."""
    from isthmus.ops import transformer
    from isthmus.ops.exchange.parameter_trees import named_leaves
    from isthmus.programs.model_folders import llama

    tensors = llama.theirs(config, dict(named_leaves(transformer.init(config, key))))
    return llama.nested({name.replace(".", "/"): tensors[name].astype(dtype) for name, dtype in dtypes})


def _loss(config: Any, params: Mapping[str, Any], batch: dict[str, Any]) -> Any:
    from isthmus.ops import transformer
    from isthmus.ops.exchange.parameter_trees import named_leaves
    from isthmus.programs.model_folders import llama

    tensors = {name.replace("/", "."): leaf for name, leaf in named_leaves(params)}
    return transformer.loss(config, llama.ours(config, tensors), batch)
