"""Where a long text may be cut so that the tokens of its pieces are, one after the other, those of the whole.

A cut is before a space that stands between two letters of ASCII. Most tokenizers split a text there whatever stands
around: no piece that they look up by itself has a letter before a space. Then nothing on one side of the cut changes
the tokens of the other: a normalizer that composes letters joins neither to a space, and each piece has its tokens by
itself. Of others, such as those that merge across words (Llama 2), nobody can tell where a cut is harmless.

What splits so is a list of the library's parts, because a regular expression does not say it; whatever is not in the
list is not cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

PIECE_BYTES: Final = 1 << 17
"""Of a text that is longer, a piece has about as many: two are tokenized at once."""
_CUT: Final = re.compile(rb"[A-Za-z](?= [A-Za-z])")
_LOOK_BYTES: Final = 1 << 12
"""From the end of what is held, where a cut is looked for first."""

_NORMALIZERS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
"""Whatever they do to a letter or a space of ASCII depends on what follows, and spaces are followed by letters here."""
_LOCAL: Final = frozenset({"Digits", "Punctuation"})
"""They split around letters of some kinds, wherever these stand."""
_AT_SPACES: Final = frozenset({"Whitespace", "WhitespaceSplit", "BertPreTokenizer"})
_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS: Final = frozenset(
    {
        rf"{_WORDS}|\p{{N}}|{_REST}",  # Qwen 2.
        rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}",  # Llama 3.
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2.
    }
)
"""In none of them has a match a letter before a space."""


def may_be_cut(tokenizer: Any) -> bool:
    """Whether the tokens of a text are those of its pieces, by a tokenizer of the library."""
    if type(tokenizer.model).__name__ == "BPE" and tokenizer.model.dropout:
        return False
    added = tokenizer.get_added_tokens_decoder().values()
    if any(each.lstrip or each.rstrip or each.single_word or " " in each.content for each in added):
        return False
    return all(part["type"] in _NORMALIZERS for part in _parts(tokenizer.normalizer, "normalizers")) and _splits(
        _parts(tokenizer.pre_tokenizer, "pretokenizers")
    )


def _parts(part: Any, name: str) -> list[Mapping[str, Any]]:
    """What a part of a tokenizer is made of."""
    if part is None:
        return []
    state = json.loads(part.__getstate__())
    return list(state[name]) if state["type"] == "Sequence" else [state]


def _splits(parts: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a text is split at every cut."""
    is_split = False
    for part in parts:
        kind = part["type"]
        if kind in _LOCAL or (is_split and kind == "ByteLevel"):
            continue
        if is_split:
            return False
        if kind == "ByteLevel":
            is_split = part.get("use_regex", True)
        elif kind == "Metaspace":
            is_split = part.get("split", True)
        elif kind == "Split":
            is_known = part["pattern"].get("Regex") in _PATTERNS
            is_split = is_known and part["behavior"] == "Isolated" and not part["invert"]
        else:
            is_split = kind in _AT_SPACES
        if not is_split:
            return False
    return is_split


def pieces_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of a text in UTF-8 that comes in blocks; what has no place to cut stays whole."""
    held, looked = bytearray(), 0
    for block in blocks:
        held += block
        if len(held) < PIECE_BYTES or len(held) < looked:
            continue
        cut = _last_cut(bytes(held[-_LOOK_BYTES:])) or _last_cut(bytes(held))
        if cut is None:
            looked = 2 * len(held)
            continue
        at = len(held) - cut
        yield bytes(held[:at])
        del held[:at]
        looked = 0
    if held:
        yield bytes(held)


def _last_cut(text: bytes) -> int | None:
    """How many bytes from the end the last cut is."""
    last = max((each.end() for each in _CUT.finditer(text)), default=None)
    return None if last is None else len(text) - last
