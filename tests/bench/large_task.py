"""A model folder as a task with a few batches of evaluation, and a folder of the same architecture to try it with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 49152
TOKENS = 200_000


def large(*, folder: str, framework: str, context: int, batch: int, evaluation: int) -> Any:
    """The task of the command, but for the number of batches of an evaluation."""
    from isthmus.programs.folder_task import task

    data = (str(Path(folder) / "ids.npy"),)
    made = task(folder=folder, data=data, framework=framework, context=context, batch=batch)  # type: ignore[arg-type]
    return replace(made, evaluation=evaluation)


def linked(folder: Path, here: Path) -> Path:
    """A folder with the files of another, and with ids to train on."""
    here.mkdir(parents=True)
    for file in folder.resolve().iterdir():
        (here / file.name).symlink_to(file)
    _write_ids(here)
    return here


def made(here: Path, layers: int, width: int) -> Path:
    """A folder of a Llama that begins at random, with an embedding of 49,152 rows, as SmolLM2 has it."""
    from safetensors.numpy import save_file

    here.mkdir(parents=True)
    heads, key_heads, inner = max(3, width // 64 // 3 * 3), max(1, width // 64 // 3), width * 8 // 3
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": 64,
        "num_key_value_heads": key_heads, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "dtype": "float32",
        "tie_word_embeddings": True, "hidden_act": "silu", "rope_theta": 100000.0, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (here / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, width),
        "model.norm.weight": (width,),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (width,), at + "post_attention_layernorm.weight": (width,)}
        shapes |= {at + f"self_attn.{name}_proj.weight": (64 * count, width)
                   for name, count in (("q", heads), ("k", key_heads), ("v", key_heads))}  # fmt: skip
        shapes[at + "self_attn.o_proj.weight"] = (width, 64 * heads)
        shapes |= {at + f"mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
        shapes[at + "mlp.down_proj.weight"] = (width, inner)
    tensors = {
        name: np.ones(shape, np.float32) if len(shape) == 1 else rng.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, here / "model.safetensors", metadata={"format": "pt"})
    _write_ids(here)
    return here


def _write_ids(here: Path) -> None:
    """Tokens that follow each other by a rule: no text is needed to count seconds."""
    ids = np.cumsum(np.random.default_rng(1).integers(0, 50, TOKENS)) % VOCABULARY
    np.save(here / "ids.npy", ids.astype(np.uint16))
