"""A text that is cut has the tokens of the whole, by every form of tokenizer that is cut, and others are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from isthmus.programs.model_folders import cuts
from isthmus.programs.model_folders.cuts import may_be_cut, pieces_of
from isthmus.programs.model_folders.tokens import FolderTokens
from tests.torch_tasks.folder_tokenizers import SPECIAL, TEXTS, VOCABULARY, byte_level, sentencepiece, write

pytestmark = [pytest.mark.torch]


def splitting(*parts: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that splits in another way."""
    made = byte_level()
    made.pre_tokenizer = parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(list(parts))
    made.normalizer = normalizer
    return made


def split(pattern: str) -> Any:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


def level(**options: Any) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def of_words(model: Any, trainer: Any, part: Any) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = part
    made.train_from_iterator(TEXTS[:-1], trainer)
    return made


PATTERNS = sorted(cuts._PATTERNS)
CUT: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level with a space before": lambda: splitting(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "digits": lambda: splitting(pre_tokenizers.Digits(individual_digits=True), level()),
    "nfc": lambda: splitting(level(), normalizer=normalizers.NFC()),
    "normalizers": lambda: splitting(
        level(), normalizer=normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
    ),
    **{
        f"pattern {number}": lambda pattern=pattern: splitting(split(pattern), level(use_regex=False))
        for number, pattern in enumerate(PATTERNS)
    },
    "metaspace": lambda: of_words(
        models.BPE(unk_token="<unk>"),
        trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False),
        pre_tokenizers.Metaspace(),
    ),
    "unigram": lambda: of_words(
        models.Unigram(),
        trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
    ),
    "words": lambda: of_words(
        models.WordPiece(unk_token="<unk>"),
        trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False),
        pre_tokenizers.BertPreTokenizer(),
    ),
}


def drawn(seed: int) -> bytes:
    rng = random.Random(seed)
    letters = [*"aZ7 .\n\t'", "  ", " a", "n t", "don't ", "\N{COMBINING ACUTE ACCENT}", "\N{SNOWMAN}", "東", "</s>",
               "<think>", "times ", " 1,234", "e\N{COMBINING ACUTE ACCENT} b", "\u00a0", "\r\n"]  # fmt: skip
    return "".join(rng.choices([*letters, *TEXTS[:20]], k=60)).encode()


@pytest.mark.parametrize("name", CUT)
def test_tokens_of_pieces_are_those_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(cuts, "PIECE_BYTES", 1)
    tokens = FolderTokens(write(tmp_path / "it", CUT[name]()), VOCABULARY, "Trying it")
    assert tokens.is_cut
    count = 0
    for seed in range(100):
        text = drawn(seed)
        pieces = list(pieces_of(text[at : at + 1] for at in range(len(text))))
        count += len(pieces)
        assert [id for piece in pieces for id in tokens.encode(piece)] == tokens.encode(text).tolist()
    assert count > 2000


def test_qwen2_is_cut_by_the_parts_of_its_class(tmp_path: Path) -> None:
    assert FolderTokens(
        write(tmp_path / "it", byte_level(), {"tokenizer_class": "Qwen2Tokenizer"}), VOCABULARY, ""
    ).is_cut


NOT_CUT: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "merges across words": sentencepiece,
    "no parts": lambda: tokenizers.Tokenizer(models.BPE()),
    "another pattern": lambda: splitting(split(r"\w+ \w+|\s+"), level(use_regex=False)),
    "bytes alone": lambda: splitting(level(use_regex=False)),
    "scripts": lambda: splitting(pre_tokenizers.UnicodeScripts(), level()),
    "a prefix": lambda: splitting(level(), normalizer=normalizers.Prepend("_")),
    "metaspace that does not split": lambda: splitting(pre_tokenizers.Metaspace(split=False)),
}


@pytest.mark.parametrize("name", NOT_CUT)
def test_what_may_read_across_a_space_is_not_cut(name: str) -> None:
    assert not may_be_cut(NOT_CUT[name]())


def test_tokens_with_a_space_in_them_are_not_cut() -> None:
    for more in ({"content": "a b"}, {"content": "a", "lstrip": True}, {"content": "a", "single_word": True}):
        made = byte_level()
        assert may_be_cut(made)
        made.add_tokens([tokenizers.AddedToken(**more)])
        assert not may_be_cut(made)
