"""Text as tokens, and back: bytes, or the tokenizer of a model folder.

A tokenizer.json is read by the library `tokenizers`, which runs no code of the folder's. The ids of a text are those
that the tokenizer of transformers 5 gives, with what tokenizer_config.json says of special tokens; its `add_bos_token`
does not count there, where there is a tokenizer.json, whose post-processor says what begins a text.
`tests/torch_tasks/test_folder_tokens.py` compares them.

transformers 5 takes from the tokenizer.json of some folders only the vocabulary, merges and post-processor, and makes
the rest itself, by the class of its tokenizer: a Qwen2 has its own normalizer (NFC) and its own way to split a text,
which gave 3,010 tokens where the file alone gave 2,997. `_rebuild` does the same, so that a model that is trained here
reads what it reads there.

Texts are data: one that spells a special token has the tokens of its letters, else a page about chat templates would
end documents and open turns. A prompt is an instruction, in which a special token is meant.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, final

import numpy as np
import numpy.typing as npt

from isthmus.programs.model_folders.cuts import may_be_cut
from isthmus.programs.model_folders.folders import (
    DOCUMENT_BYTES_MAX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    NamedTokens,
    named_tokens_in,
    pad_in,
    tokenizer_config_in,
    tokenizer_kind_in,
)
from isthmus.runtime.errors import ConfigError, shortened

BYTES: Final = 256
_PANIC: Final = "PanicException"
"""The name of the class that pyo3 makes for each of its libraries."""
_PARALLEL: Final = "TOKENIZERS_PARALLELISM"
Ids = npt.NDArray[np.int32]
Marked: TypeAlias = Literal["on", "off", "folder"]
"""Whether a document has a token at its beginning, or its end; "folder": as the folder says."""
_PADS: Final = ("<pad>", "[PAD]")
"""What tokens that fill up batches are mostly called, in folders that name none."""
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""What stands for a space in tokens of sentencepiece."""
_PROBES: Final = ("a", "0", "A", " ", ".", "\n")
"""Texts, one of which any tokenizer has a token for."""


T = TypeVar("T")


@final
class Rendered(NamedTuple):
    """The tokens of a text, and the place of each in it: its first character, and the one behind its last."""

    ids: Ids
    offsets: list[tuple[int, int]]

    @classmethod
    def of(cls, encoding: Any) -> Rendered:
        """Of what the library has made of a text."""
        return cls(np.asarray(encoding.ids, np.int32), encoding.offsets)


class TextTokens(Protocol):
    """How a model's text becomes tokens; `begin` are those that each text begins with."""

    begin: tuple[int, ...]

    @property
    def is_cut(self) -> bool:
        """Whether the tokens of a long text are those of its pieces (`cuts`)."""

    def encode(self, text: bytes) -> Ids:
        """The tokens of a text in UTF-8, without those that it begins with; ConfigError where it is no such text."""

    def prompt(self, text: bytes) -> Ids:
        """The tokens of a text that a model goes on with: with those that it begins with, and special tokens in it."""

    def encode_all(self, texts: Sequence[bytes]) -> list[Ids]:
        """The tokens of each of some texts, as `encode` has them."""

    def decode(self, ids: Ids) -> str:
        """The text of some tokens, with U+FFFD for what is none."""

    def bytes_after_first(self, text: bytes) -> int:
        """How many bytes of a text are not in its first token."""


@final
class ByteTokens:
    """A byte is a token."""

    begin: tuple[int, ...] = ()
    is_cut = True

    def encode(self, text: bytes) -> Ids:
        return np.frombuffer(text, np.uint8).astype(np.int32)

    def prompt(self, text: bytes) -> Ids:
        return self.encode(text)

    def encode_all(self, texts: Sequence[bytes]) -> list[Ids]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Ids) -> str:
        return bytes(ids[ids < BYTES].astype(np.uint8)).decode(errors="replace")

    def bytes_after_first(self, text: bytes) -> int:
        return max(len(text) - 1, 0)


@final
class FolderTokens:
    """The tokenizer of a folder, for a model with so many token ids.

    `begin`: what transformers puts before a text, where `bos` is "folder"; the folder's bos token at least, where it is
    "on". `special_in_text`: texts have the special tokens that they spell. `is_former`: the file is read with all that
    it says, and nothing beside it, as before there were such settings. `options`: from these and the folder follows all
    that it gives. `day`: what chat templates take for today, if not the day of now.
    """

    def __init__(
        self,
        folder: Path,
        vocabulary: int,
        doing: str,
        *,
        bos: Marked = "folder",
        special_in_text: bool = False,
        is_former: bool = False,
        day: str | None = None,
    ) -> None:
        self._doing, self.folder, path = doing, folder, folder / TOKENIZER
        self.day = day or date.today().isoformat()
        self.options, self._is_former = (vocabulary, bos, special_in_text, is_former), is_former
        if not path.is_file():
            do = "Save one with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)."
            raise ConfigError(doing, f"{TOKENIZER} in {folder}", "nothing there", do)
        if (size := path.stat().st_size) > DOCUMENT_BYTES_MAX:
            do = "Take the folder again from where it is whole."
            raise ConfigError(doing, f"{TOKENIZER} of at most {DOCUMENT_BYTES_MAX} bytes", f"{size} bytes", do)
        self._path, self._library = path, _library(doing)
        with self._asked():
            self._tokenizer = self._library.Tokenizer.from_file(str(path))
            if not is_former:
                self._tokenizer.no_truncation()  # What a batch of some training once needed; of a text it is a loss.
                self._tokenizer.no_padding()
            most = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if most >= vocabulary:
            do = "Take the tokenizer that belongs to this model, or resize its embedding."
            raise ConfigError(doing, f"token ids below {vocabulary}, as the embedding has", f"one of {most}", do)
        self._special_in_text = special_in_text
        kind = tokenizer_kind_in(folder, doing)
        tokens = named_tokens_in(folder, doing)
        with self._asked():
            if not is_former:
                _rebuild(self._tokenizer, kind, tokenizer_config_in(folder, doing), tokens, self._library)
                self._know_special(tokens, vocabulary)
            self._tokenizer.encode_special_tokens = not special_in_text
            bos_id = self._id_of(tokens.named.get("bos_token"))
            self.begin = () if bos == "off" else self._begin()
        if bos == "on" and not self.begin:
            if bos_id is None:
                do = "Set task.bos to folder, or leave it out."
                raise ConfigError(doing, f"a bos_token in {TOKENIZER_CONFIG} that {TOKENIZER} has", "none", do)
            self.begin = (bos_id,)

    def _know_special(self, tokens: NamedTokens, vocabulary: int) -> None:
        """Have those tokens be special that transformers takes for special; those that the model has no id for are of
        no use here."""
        there = {each.content: each.special for each in self._tokenizer.get_added_tokens_decoder().values()}
        added, named = there if tokens.added is None else tokens.added, set(tokens.named.values())
        special = [token for token, is_special in added.items() if is_special or token in named]
        for token in [*special, *sorted(named - there.keys() - added.keys())]:
            if self._id_of(token) is not None or self._tokenizer.get_vocab_size() < vocabulary:
                self._tokenizer.add_special_tokens([self._library.AddedToken(token, special=True, normalized=False)])

    @cached_property
    def is_cut(self) -> bool:
        """Whether the tokens of a long text are those of its pieces."""
        with self._asked():
            return not self._is_former and may_be_cut(self._tokenizer)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)

    def _begin(self) -> tuple[int, ...]:
        """What the post-processor of tokenizer.json puts before a text."""
        for text in _PROBES:
            encoded = self._tokenizer.encode(text, add_special_tokens=True)
            if None in (marks := encoded.sequence_ids) and 0 in marks:
                return tuple(encoded.ids[: marks.index(0)])
        return ()

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """While the library is asked: ConfigError for what it raises, which has no narrower class, and where its own
        code panics is no Exception."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
                raise
            do = "Take the folder again from where it is whole."
            raise ConfigError(self._doing, f"a tokenizer in {self._path}", shortened(str(error), 200), do) from None

    def encode(self, text: bytes) -> Ids:
        characters = self._text(text)
        with self._asked():
            return self._ids(characters)

    def prompt(self, text: bytes) -> Ids:
        return np.concatenate([np.asarray(self.begin, np.int32), self.rendered(self._text(text)).ids])

    def rendered(self, text: str) -> Rendered:
        """The tokens of a text in which special tokens are meant, such as a template makes, and the place of each in
        the text."""
        with self._asked(), self._special_meant():
            return Rendered.of(self._tokenizer.encode(text, add_special_tokens=False))

    def rendered_all(self, texts: Sequence[str]) -> list[Rendered]:
        """The tokens of each of some texts, as `rendered` has them."""
        with self._special_meant():
            return self._in_threads(texts, Rendered.of)

    @contextmanager
    def _special_meant(self) -> Iterator[None]:
        """While texts are encoded: special tokens that they spell are meant."""
        self._tokenizer.encode_special_tokens = False
        try:
            yield
        finally:
            self._tokenizer.encode_special_tokens = not self._special_in_text

    def _ids(self, text: str) -> Ids:
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def encode_all(self, texts: Sequence[bytes]) -> list[Ids]:
        return self._in_threads([self._text(text) for text in texts], lambda each: np.asarray(each.ids, np.int32))

    def _in_threads(self, texts: Sequence[str], made: Callable[[Any], T]) -> list[T]:
        """What is made of the encoding of each text, in threads that end: those of the library would stay, and no
        process with threads is forked."""

        def encoded(some: Sequence[str]) -> list[T]:
            return [made(each) for each in self._tokenizer.encode_batch(some, add_special_tokens=False)]

        cores = len(os.sched_getaffinity(0))
        size = max(-(-len(texts) // cores), 1)
        with self._asked(), _one_thread_each(), ThreadPoolExecutor(cores) as pool:
            parts = pool.map(encoded, [list(texts[at : at + size]) for at in range(0, len(texts), size)])
            return [each for part in parts for each in part]

    def piece(self, id: int) -> str:
        """The token of an id; empty where there is none."""
        return self._tokenizer.id_to_token(id) or ""

    @property
    def unknown(self) -> int | None:
        """The id that stands for letters without a token; None where it has none."""
        model = self._tokenizer.model
        if type(model).__name__ == "Unigram":  # It alone says so by a number, and that to pickle alone.
            number: int | None = json.loads(model.__getstate__()).get("unk_id")
            return number
        return self._id_of(model.unk_token)

    @property
    def pad(self) -> int | None:
        """The id that fills up batches: the `pad_token_id` of generation_config.json, else of config.json, else of the
        token that the folder names so; None where it has none."""
        if (configured := pad_in(self.folder, self._doing)) is not None:
            return configured
        named = named_tokens_in(self.folder, self._doing).named.get("pad_token")
        return self._id_of(named or next(filter(self._tokenizer.token_to_id, _PADS), None))

    def there_and_back(self, text: str) -> tuple[str, str]:
        """What the normalizer leaves of a text, before tokens are looked for, and what comes back of its ids."""
        normalizer, left = self._tokenizer.normalizer, text
        # One that makes letters of bytes leaves all of them.
        if normalizer is not None and b'"ByteLevel"' not in normalizer.__getstate__():
            with self._asked():
                left = normalizer.normalize_str(text)
        back = self.decode(self.encode(text.encode()))
        return left.replace(_SPACE, " "), back.replace(_SPACE, " ")

    def decode(self, ids: Ids) -> str:
        with self._asked():
            text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        return text

    def bytes_after_first(self, text: bytes) -> int:
        characters = self._text(text)
        with self._asked():
            offsets = self._tokenizer.encode(characters, add_special_tokens=False).offsets
        return len(characters[offsets[0][1] :].encode()) if offsets else 0

    def _text(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(self._doing, "text in UTF-8", str(error), "Convert it first.") from None


_QWEN2: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen2Tokenizer splits a text."""


def _rebuild(tokenizer: Any, kind: str, config: Mapping[str, Any], tokens: NamedTokens, library: Any) -> None:
    """Give a tokenizer the parts that its class in transformers makes itself, if it is one that does."""
    model = tokenizer.model
    if type(model).__name__ != "BPE":
        return
    splits, decoders = library.pre_tokenizers, library.decoders
    has_space = config.get("add_prefix_space")
    if kind == "Qwen2Tokenizer":
        model.unk_token, model.fuse_unk, model.byte_fallback = None, False, False
        tokenizer.normalizer = library.normalizers.NFC()
        split = splits.Split(library.Regex(_QWEN2), behavior="isolated", invert=False)
        level = splits.ByteLevel(add_prefix_space=bool(has_space), use_regex=False)
        tokenizer.pre_tokenizer = splits.Sequence([split, level])
        tokenizer.decoder = decoders.ByteLevel()
    elif kind == "LlamaTokenizer" and not _is_byte_level(tokenizer):
        model.unk_token, model.fuse_unk, model.byte_fallback = None, True, True
        is_first = not config.get("legacy", False)
        scheme = "never" if has_space is False else "first" if is_first else "always"
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = splits.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
        strips = [] if has_space is False else [decoders.Strip(content=" ", left=1)]
        parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strips]
        tokenizer.decoder = decoders.Sequence(parts)
    elif kind == "GemmaTokenizer":
        model.unk_token, model.fuse_unk, model.byte_fallback = tokens.named.get("unk_token", "<unk>"), True, True
        tokenizer.normalizer = library.normalizers.Replace(" ", _SPACE)
        tokenizer.pre_tokenizer = splits.Split(" ", behavior="merged_with_previous", invert=False)
        tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    elif kind == "GPT2Tokenizer":
        model.unk_token, model.fuse_unk, model.byte_fallback = None, False, False
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = splits.ByteLevel(add_prefix_space=bool(has_space))
        tokenizer.decoder = decoders.ByteLevel()


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether the letters of its tokens stand for bytes."""
    document = json.loads(tokenizer.to_str())
    return any('"ByteLevel"' in json.dumps(document.get(part)) for part in ("pre_tokenizer", "decoder"))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let the library make no threads of its own."""
    before = os.environ.get(_PARALLEL)
    os.environ[_PARALLEL] = "false"
    try:
        yield
    finally:
        os.environ.pop(_PARALLEL)
        if before is not None:
            os.environ[_PARALLEL] = before


def byte_tokenizer(doing: str) -> dict[str, bytes]:
    """The files of a tokenizer whose 256 tokens are the bytes, by name: a byte-level one without merges."""
    library = _library(doing)
    model = library.models.BPE(vocab={letter: byte for byte, letter in _letters().items()}, merges=[])
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    document = b'{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}\n'
    return {TOKENIZER: tokenizer.to_str(pretty=True).encode(), "tokenizer_config.json": document}


def _letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level tokenizer, as GPT-2 has it: itself where it is printable in
    Latin-1, else the next beyond."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(BYTES + i) for i, byte in enumerate(others)}


def _library(doing: str) -> Any:
    try:
        import tokenizers
        from tokenizers import decoders, models, normalizers, pre_tokenizers  # noqa: F401
    except ImportError:
        do = "Install it beside isthmus: in a clone, pip install -e '.[folders]'."
        raise ConfigError(doing, "the library tokenizers", "none", do) from None
    return tokenizers
