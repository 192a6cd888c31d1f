"""The module of a task in PyTorch as a model folder: by the library that its class is from, as that writes it.

A model of peft is its adapter, or merged into the model that it adapts; a model of transformers is itself. Any other
module has no such form. Neither library is imported here: a module of theirs has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from isthmus.programs.model_folders import folders, modules
from isthmus.runtime.errors import ConfigError

_DO: Final = "Use --format safetensors, or orbax: names and arrays, of any task."


def write(
    module: Any, folder: Path, dtypes: Mapping[str, str], *, dtype: str | None, is_merged: bool, doing: str
) -> list[str]:
    """Write a module into a folder that exists, and return what was left out of what is beside it; ConfigError for one
    that has no such form.

    `dtypes`: the merged leaves by path, and the dtype of each; `dtype`: of all tensors, None for that which each has;
    `is_merged`: not the adapter of a module, but the adapted model.
    """
    module = getattr(module, "_orig_mod", module)
    is_adapter = _is_of(module, "peft", "PeftModel")
    if not is_adapter and not _is_of(module, "transformers", "PreTrainedModel"):
        raise _no_form(module, doing)
    if is_merged and not is_adapter:
        do = "Leave --merged out."
        raise ConfigError(doing, "an adapter of peft, which can be merged", type(module).__name__, do)
    if is_adapter and not is_merged:
        _check_whole(module, dtypes, doing)
    if dtype is not None:
        import torch

        module.to(getattr(torch, dtype))
    if is_adapter and not is_merged:
        # Told, and not "auto", for which peft would look up the adapted model on a network.
        module.save_pretrained(str(folder), save_embedding_layers=_trains_embedding(module))
        return []
    if is_adapter:
        if not hasattr(module, "merge_and_unload"):
            do = "Leave --merged out: the adapter alone has such a form."
            raise ConfigError(doing, "an adapter that can be merged", f"one of {module.peft_type}", do)
        module = module.merge_and_unload()
    if not _is_of(module, "transformers", "PreTrainedModel"):
        raise _no_form(module, doing)
    modules.write(module, folder)
    source = Path(getattr(module, "name_or_path", "") or "")
    if source.name and source.is_dir():
        beside = folders.beside(source)
        folders.write_documents(folder, {}, beside.files)
        return beside.left_out
    return []


def _no_form(module: Any, doing: str) -> ConfigError:
    expected = "a model of transformers, or an adapter of peft"
    return ConfigError(doing, expected, f"one of {type(module).__name__}", _DO)


def _is_of(module: Any, library: str, name: str) -> bool:
    """Whether a module is of this class, of a library that is not imported for it."""
    kind = getattr(sys.modules.get(library), name, None)
    return kind is not None and isinstance(module, kind)


def _check_whole(module: Any, dtypes: Mapping[str, str], doing: str) -> None:
    """ConfigError if something is trained that is not in the adapter."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(module, save_embedding_layers=_trains_embedding(module))
    kept = {tensor.data_ptr() for tensor in state.values()}
    named = {name.replace(".", "/"): each for name, each in module.named_parameters()}
    lost = [path for path in dtypes if path not in named or named[path].data_ptr() not in kept]
    if lost:
        do = "Use --merged; or train what the adapter has alone: peft's modules_to_save names more."
        raise ConfigError(doing, "an adapter with all that is trained", f"{folders.listed(lost)} beside it", do)


def _trains_embedding(module: Any) -> bool:
    """Whether the adapted model's own embedding is trained, which peft saves only if it is told to."""
    table = getattr(module.get_base_model(), "get_input_embeddings", lambda: None)()
    return bool(getattr(getattr(table, "weight", None), "requires_grad", False))
