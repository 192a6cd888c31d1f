"""A folder's tokenizer here, against transformers' reading of the same folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from isthmus.programs.model_folders.tokens import FolderTokens
from tests.torch_tasks.folder_tokenizers import TEXTS, VOCABULARY, byte_level, sentencepiece, theirs, write

pytestmark = [pytest.mark.torch]

MADE = {"byte_level": byte_level, "sentencepiece": sentencepiece}


@pytest.mark.parametrize("name", MADE)
def test_a_tokenizer_neither_cuts_nor_fills_a_text(tmp_path: Path, name: str) -> None:
    made = MADE[name]()
    expected = [made.encode(text, add_special_tokens=False).ids for text in TEXTS]
    made.enable_truncation(8)
    made.enable_padding(pad_id=3, pad_token="<pad>", length=12)
    folder = write(tmp_path / "it", made)
    assert len(made.encode(TEXTS[0]).ids) == 12, "it would have cut and filled"
    ours = FolderTokens(folder, VOCABULARY, "Reading it")
    for text, ids in zip(TEXTS, expected, strict=True):
        assert ours.encode(text.encode()).tolist() == ids
        assert ours.bytes_after_first(text.encode()) < max(len(text.encode()), 1)
    for ids, one in zip(expected, ours.encode_all([text.encode() for text in TEXTS]), strict=True):
        np.testing.assert_array_equal(one, ids)
    for text in TEXTS[:-1]:
        assert ours.encode(text.encode()).tolist() == theirs(folder, text, add_special_tokens=False)
