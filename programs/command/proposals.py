"""What somebody may have meant who typed another name: the option or setting that it is here.

Names of other libraries are known here, too, as far as a setting means the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

LIKE: Final = 0.75
"""How alike two names are, of which one was meant (`difflib`)."""
MEANT: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "--tokens": ("max_steps", "max_tokens", "num_tokens", "steps", "epochs", "num_train_epochs", "num_epochs"),
        "--learners": ("workers", "num_workers", "islands", "world_size", "nproc", "nproc_per_node", "replicas"),
        "--run-dir": ("output_dir", "out", "out_dir", "save_dir", "logdir"),
        "--model": ("model_name_or_path", "pretrained", "checkpoint_dir"),
        "--data": ("dataset", "train_file", "train_data", "train_files", "dataset_name", "input"),
        "--resume": ("resume_from_checkpoint",),
        "--loop": ("script",),
        "task.lr": ("learning_rate", "rate", "max_lr"),
        "task.batch": ("batch_size", "per_device_train_batch_size", "micro_batch_size", "train_batch_size", "bs"),
        "task.context": (
            "seq_len",
            "seq_length",
            "sequence_length",
            "max_seq_len",
            "max_seq_length",
            "max_length",
            "block_size",
            "context_length",
        ),
        "task.layers": ("num_layers", "n_layer", "n_layers", "depth", "num_hidden_layers"),
        "task.width": ("hidden_size", "d_model", "n_embd", "dim", "embed_dim"),
        "task.heads": ("num_heads", "n_head", "n_heads", "num_attention_heads"),
        "task.warmup": ("warmup_steps", "warmup_ratio", "lr_warmup"),
        "task.clip": ("max_grad_norm", "grad_clip", "clip_grad", "gradient_clipping"),
        "task.checkpoint": ("gradient_checkpointing", "activation_checkpointing", "remat"),
        "task.vocabulary": ("vocab_size", "vocab"),
        "task.column": ("text_column", "dataset_text_field", "text_field"),
        "task.lora_rank": ("lora_r", "rank"),
        "program.interval": ("sync_every", "local_steps", "inner_steps", "sync_interval"),
        "run.snapshot_every_seconds": ("save_steps", "save_interval", "checkpoint_interval"),
    }
)
"""What other programs call a thing, in small letters and with _."""


def meant_by(name: str, options: Mapping[str, str] = MappingProxyType({}), value: str = "...") -> str:
    """A sentence that proposes what `name` stands for: an option, or a setting with --set; "" where nothing is near.

    `value`: what was given of it. `options`: those of the command, by their names in small letters and with _.
    """
    plain = name.strip().lstrip("-").partition("=")[0].lower().replace("-", "_").rpartition(".")[2]
    settings = _settings()
    others = {other: key for key, names in MEANT.items() for other in names}
    found = settings.get(plain) or [each for each in [others.get(plain)] if each is not None]
    if not found and (near := get_close_matches(plain, [*settings, *others, *options], n=1, cutoff=LIKE)):
        option = options.get(near[0]) or others.get(near[0])
        found = settings[near[0]] if option is None else [option]
    if not found:
        return ""
    keys = [f"--set {key}={value}" if "." in key else key for key in found]
    return f"Did you mean {' or '.join(keys)}?"


def _settings() -> dict[str, list[str]]:
    """The keys that `isthmus train` has without further words, each with its section; by their names."""
    settings: dict[str, list[str]] = {}
    for key in _keys():
        settings.setdefault(key.partition(".")[2], []).append(key)
    return settings


def _keys() -> Iterator[str]:
    from isthmus.programs import FOLDER, SHIPPED
    from isthmus.programs.engine.request.program import Program
    from isthmus.programs.engine.request.request import shipped_task
    from isthmus.programs.engine.request.run_settings import SCHEMA
    from isthmus.programs.settings import Schema

    keys = dict.fromkeys(f"run.{key}" for key in SCHEMA.keys)
    for given in ({}, {FOLDER: ""}):
        keys |= dict.fromkeys(f"task.{key}" for key in Schema.of("task", shipped_task(given)[1].task).keys)
    for name in SHIPPED:
        keys |= dict.fromkeys(f"program.{key}" for key in Program(name).schema().keys)
    yield from keys
