"""A model folder on disk: read, mapped, tensor by tensor; and written, whole or not at all.

What is read may come from anywhere: documents are read up to a bound, names of files stay within the folder, tensors
are compared with what config.json says before one of them is read, and nothing is unpickled or run.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import ml_dtypes  # noqa: F401  # Gives NumPy the dtype bfloat16.
import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from isthmus.ops.model_config import ModelConfig
from isthmus.programs.model_folders import llama
from isthmus.runtime.errors import ConfigError, Fault, shortened
from isthmus.runtime.system.disk import check_regular
from isthmus.runtime.system.files import read_bytes
from isthmus.runtime.system.refusals import remedy

_TEMPLATES: Final = ("chat_template*", "additional_chat_templates/*.jinja")
"""The files of chat templates, as patterns."""
CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
SPECIAL_TOKENS: Final = "special_tokens_map.json"
GENERATION: Final = "generation_config.json"
ADAPTER: Final = "adapter_config.json"
"""Beside a model it has transformers read the tensors of another folder, which it names, in place of these."""
BESIDE: Final = (
    TOKENIZER,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
    "added_tokens.json",
    GENERATION,
    "tokenizer.model*",
    "sentencepiece*.model",
    "spiece.model",
    "*.tiktoken",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    *_TEMPLATES,
    "LICENSE*",
    "LICENCE*",
    "COPYING*",
    "NOTICE*",
    "README*",
)
"""Files that go along with a model, as far as they are there: tokenizers in every form, what is said to a model, and to
people."""
_NEVER_BESIDE: Final = frozenset(
    (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".npz", ".pkl")
)
"""How the names of weights and states end, whatever they begin with."""
DOCUMENT_BYTES_MAX: Final = 256 << 20
"""Of a config.json, an index or a tokenizer.json; the largest known tokenizer has 34 MB."""
SHARD_BYTES_MAX: Final = 5_000_000_000
"""Of one file of tensors, as transformers has it."""
DTYPES: Final[Mapping[str, str]] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_IGNORED: Final = ("rotary_emb.inv_freq", "lm_head.weight")
"""Tensors that old folders have beside the model: constants of rotary positions, and a head that is the embedding."""
_HEADS: Final = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS: Final = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
"""How the names end that architectures have for the output head, and for the embedding of tokens."""
_ROWS: Final = 4096
"""Of two tensors that are compared at once."""
NAMES_MAX: Final = 4

Array = npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder whose tensors are all there, and of the shapes that its config.json says.

    `files`: which file has a tensor, by its name; `dtypes`: of each, float32, float16 or bfloat16.
    """

    path: Path
    document: Mapping[str, Any]
    config: ModelConfig
    files: Mapping[str, Path]
    dtypes: Mapping[str, str]

    def tensor(self, name: str) -> Array:
        """A tensor, mapped from its file."""
        with safe_open(self.files[name], framework="np") as file:
            array: Array = file.get_tensor(name)
        return array

    def tensors(self, dtype: str) -> dict[str, Array]:
        """All tensors, converted to one dtype."""
        return {name: self.tensor(name).astype(dtype) for name in self.files}


def read(path: Path, doing: str) -> ModelFolder:
    """The model folder at a path; ConfigError, with all faults of its tensors, if there is none that is whole."""
    document = document_in(path, doing)
    config = llama.config_of(document, doing)
    expected = {place.theirs: place.shape for place in llama.places(config)}
    files: dict[str, Path] = {}
    dtypes: dict[str, str] = {}
    faults: list[Fault] = []
    for file in weight_files(path, doing):
        with opened_tensors(file, doing) as opened:
            for name in opened.keys():  # noqa: SIM118  # It is no mapping.
                part = opened.get_slice(name)
                if name in expected:
                    faults += _tensor_faults(doing, name, expected[name], part)
                    files[name], dtypes[name] = file, DTYPES.get(part.get_dtype(), part.get_dtype())
                elif not name.endswith(_IGNORED):
                    do = "Take a folder of this architecture: what this tensor does is not known here."
                    faults.append(Fault(doing, f"tensors of {config_name(document)}", shortened(repr(name), 200), do))
        if len(faults) > NAMES_MAX:
            break  # What is in files that are not read by now, is not missing.
    else:
        if missing := [name for name in expected if name not in files]:
            do = "Take the folder again from where it is whole."
            faults.insert(0, Fault(doing, f"tensors {listed(missing)}", "files without them", do))
    if faults:
        raise ConfigError.of(faults[:NAMES_MAX])
    if config.tied:
        check_tied(path, doing)
    return ModelFolder(path, document, config, files, dtypes)


def parameters_in(path: Path, doing: str) -> int:
    """How many values its files have; ConfigError as `weight_files` and `opened_tensors`."""
    count = 0
    for file in weight_files(path, doing):
        with opened_tensors(file, doing) as opened:
            count += sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
    return count


def ends_in(document: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens of a config.json, or a generation_config.json, that end a text."""
    return _ids_in(document, "eos_token_id")


def _ids_in(document: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """The token ids of a key, which has one, a list of them, or none."""
    ids = document.get(key)
    return tuple(each for each in (ids if isinstance(ids, list) else [ids]) if type(each) is int)


def stops_in(path: Path, document: Mapping[str, Any], doing: str) -> tuple[int, ...]:
    """The tokens at which the model of a folder stops writing, as `generate` of transformers has them: those of its
    generation_config.json, though it name none; without that file those of its config.json, which is its `document`,
    and none that the class of its configuration has by default."""
    return ends_in(_object(path / GENERATION, doing) if (path / GENERATION).is_file() else document)


def pad_in(path: Path, doing: str) -> int | None:
    """The token that fills up batches: the first of generation_config.json, else of config.json. None where neither
    names one."""
    documents = (_object_if_there(path / GENERATION, doing), document_in(path, doing))
    return next((id for document in documents for id in _ids_in(document, "pad_token_id")), None)


def document_end_in(path: Path, document: Mapping[str, Any], doing: str) -> int | None:
    """The token that ends a document: the first of generation_config.json, so that a model that has learned it stops;
    else the first of config.json, which is the folder's `document`. None where neither names one."""
    return next(iter([*ends_in(_object_if_there(path / GENERATION, doing)), *ends_in(document)]), None)


def tokenizer_config_in(path: Path, doing: str) -> dict[str, Any]:
    """The tokenizer_config.json of a folder; nothing where there is none."""
    return _object_if_there(path / TOKENIZER_CONFIG, doing)


def tokenizer_kind_in(path: Path, doing: str) -> str:
    """The class of transformers 5 that reads the tokenizer of a folder, as its AutoTokenizer chooses it, of those that
    make a part of it themselves; "" where tokenizer.json is read as it is."""
    named = tokenizer_config_in(path, doing).get("tokenizer_class")
    kind = _object_if_there(path / CONFIG, doing).get("model_type")
    named = named.removesuffix("Fast") if isinstance(named, str) else None
    if kind == "qwen2":
        return "Qwen2Tokenizer"
    if kind not in TOKENIZERS_OF:
        return ""
    named = named or TOKENIZERS_OF[kind]
    return named if named in REBUILT else ""


REBUILT: Final = ("Qwen2Tokenizer", "LlamaTokenizer", "GemmaTokenizer", "GPT2Tokenizer")
"""Classes that take of a tokenizer.json the vocabulary, merges and post-processor, and make the rest themselves."""
TOKENIZERS_OF: Final[Mapping[Any, str | None]] = {
    "llama": None,
    "qwen3": "Qwen2Tokenizer",
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2"), "GPT2Tokenizer"),
}
"""The class of an architecture's tokenizer where the folder names none, by `model_type`, of those where the class that
a folder names counts."""


SPECIAL_KEYS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class NamedTokens(NamedTuple):
    """The tokens that a folder names beside its tokenizer.json, as transformers reads them.

    `named`: the special ones, by what they are for; `added`: whether each that was added to the vocabulary is special,
    None where the folder leaves that to its tokenizer.json.
    """

    named: dict[str, str]
    added: dict[str, bool] | None


def named_tokens_in(path: Path, doing: str) -> NamedTokens:
    """Those of tokenizer_config.json, and of special_tokens_map.json in folders of its former versions."""
    config = tokenizer_config_in(path, doing)
    added = config.get("added_tokens_decoder")
    if added is None:
        config |= _object_if_there(path / SPECIAL_TOKENS, doing)
    named = {key: token for key in SPECIAL_KEYS if (token := _content(config.get(key)))}
    if not isinstance(added, dict):
        return NamedTokens(named, None)
    values = [value for value in added.values() if isinstance(value, dict)]
    return NamedTokens(named, {token: bool(each.get("special")) for each in values if (token := _content(each))})


def template_names_in(path: Path, doing: str) -> dict[str, str]:
    """The special tokens that a chat template may name, by their names there."""
    config = tokenizer_config_in(path, doing)
    others = {key: token for key, value in config.items() if key.endswith("_token") and (token := _content(value))}
    return {**others, **named_tokens_in(path, doing).named}


def tokenizer_documents_in(path: Path) -> dict[str, bytes]:
    """The contents of all files of a folder that say how a text becomes token ids, by name. OSError of the disk."""
    templates = [file.relative_to(path).as_posix() for pattern in _TEMPLATES for file in sorted(path.glob(pattern))]
    names = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, "added_tokens.json", *templates)
    return {name: read_bytes(path / name) for name in names if (path / name).is_file()}


def day_of_templates(documents: Mapping[str, bytes], day: str | None = None) -> str:
    """A day, by default that of now, where a chat template may write it into chats; else empty."""
    is_told = any(b"strftime_now" in content for content in documents.values())
    return (day or date.today().isoformat()) if is_told else ""


def text_in(path: Path, doing: str) -> str:
    """The text of a file of a folder; ConfigError for one that is too large, or no text."""
    do = "Take the folder again from where it is whole."
    try:
        check_regular(path)
        if (size := path.stat().st_size) > DOCUMENT_BYTES_MAX:
            raise ConfigError(doing, f"{path.name} of at most {DOCUMENT_BYTES_MAX} bytes", f"{size} bytes", do)
        return read_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(doing, f"a text in {path.name}", str(error), remedy(error, do)) from None


def _content(value: Any) -> str | None:
    """The text of a token, which may be an object with more of it."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _object_if_there(path: Path, doing: str) -> dict[str, Any]:
    return _object(path, doing) if path.is_file() else {}


class FilesBeside(NamedTuple):
    """The files that go along with a model, by name; `left_out`: links that lead out of its folder."""

    files: dict[str, bytes]
    left_out: list[str]


def beside(path: Path) -> FilesBeside:
    """The tokenizer and other files that go along with the model of a folder.

    A link is followed where it ends in the folder, or in the folder `blobs` beside its `snapshots`: so the caches of
    hubs keep a model. Any other would give away whatever file of this user its maker has named.
    """
    folder = path.resolve()
    blobs = folder.parent.parent / BLOBS if folder.parent.name == SNAPSHOTS else None
    files, left_out = dict[str, bytes](), _noted(path)
    for name in _beside_in(folder):
        try:
            place = (folder / name).resolve(strict=True)
            is_ours = place.parent == blobs or place.is_relative_to(folder)
            if is_ours and place.stat().st_size <= DOCUMENT_BYTES_MAX:
                check_regular(place)
                files[name] = read_bytes(place)
            else:
                left_out.append(name)
        except FileNotFoundError:
            continue
        except (OSError, RuntimeError):  # A loop of links, until Python 3.13; and what is no regular file.
            left_out.append(name)
    return FilesBeside(files, sorted(set(left_out)))


def _beside_in(folder: Path) -> list[str]:
    """The names that go along with a model of what is in its folder, and in the one of its templates. OSError of the
    disk."""
    inner = sorted({pattern.partition("/")[0] for pattern in BESIDE if "/" in pattern})
    parts = [part for part in inner if (folder / part).is_dir() and not (folder / part).is_symlink()]
    names = [*os.listdir(folder), *(f"{part}/{name}" for part in parts for name in os.listdir(folder / part))]
    return sorted(
        name
        for name in names
        if any(fnmatchcase(name, pattern) for pattern in BESIDE if ("/" in pattern) == ("/" in name))
        and Path(name).suffix.lower() not in _NEVER_BESIDE
    )


BLOBS: Final = "blobs"
SNAPSHOTS: Final = "snapshots"
LEFT_OUT: Final = "left-out.json"
"""In a copy of such files: the names of those that were left out of it."""


def _noted(path: Path) -> list[str]:
    """The names of files that were left out of the copy at a path; none where nothing says so."""
    try:
        return msgspec.json.decode(read_bytes(path / LEFT_OUT), type=list[str])
    except (OSError, msgspec.DecodeError):
        return []


def config_name(document: Mapping[str, Any]) -> str:
    """The architecture of a folder, for people."""
    return llama.FAMILIES[document["model_type"]].architecture


def _tensor_faults(doing: str, name: str, shape: tuple[int, ...], part: Any) -> Iterator[Fault]:
    do = "Correct config.json, or take the folder from where it is whole."
    if (found := tuple(part.get_shape())) != shape:
        yield Fault(doing, f"tensor {name} of shape {list(shape)}, as {CONFIG} says", str(list(found)), do)
    if (kind := part.get_dtype()) not in DTYPES:
        do = "Take the folder in one of these; quantized models are not read."
        yield Fault(doing, f"tensor {name} of {', '.join(DTYPES.values())}", str(kind), do)


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many there are beyond."""
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


@contextmanager
def opened_tensors(file: Path, doing: str) -> Iterator[Any]:
    """A file of safetensors, mapped; ConfigError if it is not whole."""
    try:
        check_regular(file)  # Mapped by a library, which would wait for a pipe.
        with safe_open(file, framework="np") as opened:
            yield opened
    except (OSError, SafetensorError) as error:
        do = "The file is damaged, or was not copied whole: take the folder again from where it is whole."
        raise ConfigError(doing, f"{file.name}, whole", str(error), remedy(error, do)) from None


def check_tied(path: Path, doing: str) -> None:
    """ConfigError for a folder whose output head is to be its embedding, and that has a head with other values, one of
    which would be lost."""
    where = {name: file for file in weight_files(path, doing) for name in _names_in(file, doing)}
    head = next((name for name in where if name.endswith(_HEADS)), None)
    embedding = next((name for name in where if name.endswith(_EMBEDDINGS)), None)
    if head is None or embedding is None:
        return
    with opened_tensors(where[head], doing) as of_head, opened_tensors(where[embedding], doing) as of_embedding:
        parts = of_head.get_slice(head), of_embedding.get_slice(embedding)
        rows = (parts[0].get_shape() or [0])[0]
        is_same = parts[0].get_shape() == parts[1].get_shape() and all(
            np.array_equal(_rows_of(parts[0], at, rows), _rows_of(parts[1], at, rows)) for at in range(0, rows, _ROWS)
        )
    if not is_same:
        do = f"Set tie_word_embeddings in {CONFIG} to false; or take the folder from where it is whole."
        expected = f"{head} with the values of {embedding}, as tie_word_embeddings in {CONFIG} says"
        raise ConfigError(doing, expected, "others", do)


def _rows_of(part: Any, at: int, rows: int) -> Array:
    """Some rows of a tensor of so many, from one on."""
    return np.asarray(part[at : min(at + _ROWS, rows)], np.float32)


def _names_in(file: Path, doing: str) -> list[str]:
    with opened_tensors(file, doing) as opened:
        return list(opened.keys())


def weight_files(path: Path, doing: str) -> list[Path]:
    """The files of a folder that have its tensors: one file, before those of an index, as transformers has it.

    ConfigError if there are none, an index names what is not there, or a tensor is in more of these files than one.
    """
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if not (path / INDEX).is_file():
        pickles = sorted(each.name for each in path.glob("*.bin"))
        found = f"pickles ({pickles[0]}), which are never read" if pickles else "neither"
        do = "Save it with transformers' save_pretrained, which writes safetensors."
        raise ConfigError(doing, f"{WEIGHTS}, or {INDEX}", found, do)
    index = _object(path / INDEX, doing)
    do = "Take the folder again from where it is whole."
    try:
        places = msgspec.convert(index.get("weight_map"), dict[str, str])
    except msgspec.ValidationError as error:
        raise ConfigError(doing, f"a weight_map in {INDEX}", str(error), do) from None
    names = sorted(set(places.values()))
    for name in names:
        if name != os.path.basename(name) or not name.endswith(".safetensors"):
            raise ConfigError(doing, f"names of safetensors files in {INDEX}", shortened(repr(name), 200), do)
        if not (path / name).is_file():
            raise ConfigError(doing, f"{name}, which {INDEX} names", "nothing there", do)
    there = {name: _names_in(path / name, doing) for name in names}
    files = dict[str, str]()
    for name, tensors in there.items():
        for tensor in tensors:
            if (other := files.setdefault(tensor, name)) != name:
                raise ConfigError(doing, f"{shortened(tensor, 200)} in one file", f"it in {other} and in {name}", do)
    if wrong := [tensor for tensor, name in places.items() if files.get(tensor) != name]:
        expected = f"{listed([f'{shortened(tensor, 200)} in {places[tensor]}' for tensor in wrong])}, as {INDEX} says"
        actual = f"the first in {files[wrong[0]]}" if wrong[0] in files else "files without"
        raise ConfigError(doing, expected, actual, do)
    return [path / name for name in names]


def document_in(path: Path, doing: str) -> dict[str, Any]:
    """The config.json of a folder; ConfigError if there is none."""
    is_adapter = (path / ADAPTER).exists()
    if is_adapter or not (path / CONFIG).is_file():
        missing = "no such folder" if not path.is_dir() else f"no {CONFIG} in it"
        what_is_there = f"an adapter of another model ({ADAPTER})" if is_adapter else missing
        do = "Name a folder as transformers' save_pretrained writes it."
        merged = "Merge it into that model: merge_and_unload() of peft, or isthmus export --merged of its run."
        raise ConfigError(doing, f"a model folder at {path}", what_is_there, merged if is_adapter else do)
    return _object(path / CONFIG, doing)


def _object(path: Path, doing: str) -> dict[str, Any]:
    """The JSON object in a file of a folder."""
    do = "Take the folder again from where it is whole."
    try:
        size = path.stat().st_size
        if size > DOCUMENT_BYTES_MAX:
            raise ConfigError(doing, f"{path.name} of at most {DOCUMENT_BYTES_MAX} bytes", f"{size} bytes", do)
        return msgspec.json.decode(read_bytes(path), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(doing, f"a JSON object in {path.name}", str(error), remedy(error, do)) from None


def check_absent(to: Path, doing: str) -> None:
    """ConfigError if there is something at a path, or no folder around it."""
    if os.path.lexists(to):
        do = "Name another folder with --to: nothing is ever written over."
        raise ConfigError(doing, f"nothing at {to} yet", "something there", do)
    if not to.parent.is_dir():
        raise ConfigError(doing, f"a folder {to.parent}", "none", "Make it, or name another with --to.")


def write(to: Path, doing: str, fill: Callable[[Path], None]) -> None:
    """Make the folder `to`, whole or not at all: `fill` writes into one beside it, which is then renamed.

    ConfigError if something is there, and if the disk refuses.
    """
    check_absent(to, doing)
    part = to.with_name(f".{to.name}-{secrets.token_hex(4)}.part")
    try:
        part.mkdir()
        fill(part)
        mode = _mode_of_new_files(part)
        for path in [*part.rglob("*"), part]:
            if path.is_file():
                path.chmod(mode)  # The library safetensors lets the owner alone read what it writes.
            _sync(path)
        check_absent(to, doing)
        part.rename(to)
        _sync(to.parent)
    except OSError as error:
        do = "Make room, or name another folder with --to."
        raise ConfigError(
            doing, f"a folder that can be written at {to}", error.strerror or str(error), remedy(error, do)
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _mode_of_new_files(folder: Path) -> int:
    """The mode that a file has which is made in a folder."""
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    return mode


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_documents(folder: Path, documents: Mapping[str, Mapping[str, Any]], files: Mapping[str, bytes]) -> None:
    """Write JSON documents, and files as they are, into a folder. OSError of the disk."""
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def write_tensors(
    folder: Path, tensors: Mapping[str, Array], dtypes: Mapping[str, str], bytes_max: int = SHARD_BYTES_MAX
) -> None:
    """Write tensors, each in its dtype, into one file of safetensors or several of at most `bytes_max` bytes, with an
    index; one file at a time is in memory. OSError of the disk."""
    shards = _shards({name: array.size * np.dtype(dtypes[name]).itemsize for name, array in tensors.items()}, bytes_max)
    total, where = 0, dict[str, str]()
    for number, names in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        arrays = {name: np.ascontiguousarray(tensors[name].astype(dtypes[name], copy=False)) for name in names}
        # transformers reads only files that say "pt", though the bytes are the same.
        save_file(arrays, folder / file, {"format": "pt"})
        total += sum(array.nbytes for array in arrays.values())
        where |= dict.fromkeys(names, file)
    if len(shards) > 1:
        write_documents(folder, {INDEX: {"metadata": {"total_size": total}, "weight_map": where}}, {})


def _shards(sizes: Mapping[str, int], bytes_max: int) -> list[list[str]]:
    """Names in their order, cut where a file would have more than `bytes_max` bytes; a larger tensor is one alone."""
    shards: list[list[str]] = [[]]
    full = 0
    for name, size in sizes.items():
        if shards[-1] and full + size > bytes_max:
            shards.append([])
            full = 0
        shards[-1].append(name)
        full += size
    return shards
