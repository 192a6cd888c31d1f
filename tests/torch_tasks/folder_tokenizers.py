"""Tokenizers of model folders that are made for a test, in the forms that folders have, and what transformers reads
with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS: Final = [
    *(f"{i} times 7 is {7 * i}, höchstens; don't count 1,234 twice.\n" for i in range(40)),
    "  Two spaces, a\ttab,\r\n\r\nand 東京 \N{SNOWMAN} e\N{COMBINING ACUTE ACCENT}.",
    "",
    " ",
    "It ends </s> here, and <s>begins</s><pad> there; <|im_start|>user\nis said.<think>not special</think>",
]
SPECIAL: Final = ["<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
VOCABULARY: Final = 420


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2, Llama 3 and Qwen have them."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS[:-1], trainer)
    made.add_tokens([tokenizers.AddedToken("<think>", special=False)])
    return made


def sentencepiece() -> tokenizers.Tokenizer:
    """As Llama 2 and Mistral have them."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    # Every byte by itself, for what has no token of its own.
    special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    made.train_from_iterator([text for text in TEXTS[:-1] if text.isascii()], trainer)
    document = json.loads(made.to_str())
    document["added_tokens"] = [each for each in document["added_tokens"] if each["content"] in SPECIAL]
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def begins_by(made: tokenizers.Tokenizer, single: str = "<s> $A") -> tokenizers.Tokenizer:
    """The same with a post-processor that puts special tokens around a text."""
    names = [name for name in SPECIAL if name in single.split()]
    made.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, made.token_to_id(name)) for name in names]
    )
    return made


def write(to: Path, made: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None) -> Path:
    """A folder of a Llama without tensors."""
    to.mkdir(exist_ok=True)
    made.save(str(to / "tokenizer.json"))
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    (to / "tokenizer_config.json").write_text(json.dumps({**own, **(config or {})}))
    if not (to / "config.json").exists():
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        document = {"model_type": "llama", "vocab_size": VOCABULARY, "max_position_embeddings": 64, **sizes}
        (to / "config.json").write_text(json.dumps({**document, "architectures": ["LlamaForCausalLM"]}))
    return to


def theirs(folder: Path, text: str, **how: Any) -> list[int]:
    """The ids of a text as transformers gives them."""
    ids: list[int] = transformers.AutoTokenizer.from_pretrained(folder)(text, **how)["input_ids"]
    return ids
