"""The model of a run that trains adapters of a model folder: the run has the adapters, the folder what they adapt.

The adapters alone need nothing but the run folder. What computes with them reads the folder's tensors from where the
run read them, and compares their digests with the run's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.ops.exchange.parameter_trees import EVERYTHING
from isthmus.programs import FOLDER
from isthmus.programs.engine.request.kept_model import folder_kept
from isthmus.programs.model_folders import folders, modules
from isthmus.programs.model_folders.adapters import Adapters
from isthmus.programs.trained.run_model import check_frozen
from isthmus.runtime.errors import ConfigError


def write_adapters(
    run: Path, settings: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], dtypes: Mapping[str, str],
    folder: Path, doing: str,
) -> list[str]:  # fmt: skip
    """Write the adapters of a run into an empty folder as peft does, with the tokenizer of what they adapt; returns the
    files that were left out of what is beside it."""
    import torch

    adapters = Adapters.of(settings)
    assert adapters is not None
    kept, base = _folders(run, settings)
    module = adapters.bare(modules.read(kept, doing), base, doing)
    names = {name.replace(".", "/"): name for name, each in module.named_parameters() if each.requires_grad}
    _check_names(names.keys(), arrays, doing)
    state = {
        names[path]: torch.from_numpy(np.array(array, np.float32)).to(getattr(torch, dtypes[path]))
        for path, array in arrays.items()
    }
    with modules.quiet():
        # Told, and not "auto", for which peft would look up the adapted model on a network.
        module.save_pretrained(str(folder), state_dict=state, save_embedding_layers=False)
    found = folders.beside(kept)
    folders.write_documents(folder, {}, found.files)
    return found.left_out


def adapted(run: Path, settings: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], doing: str) -> Any:
    """The folder's module with the adapters of a run in it, of peft; ConfigError unless its tensors are the run's."""
    import torch

    from isthmus.ops.island.torch_model import Model

    adapters = Adapters.of(settings)
    assert adapters is not None
    kept, base = _folders(run, settings)
    if not (base / folders.CONFIG).is_file():
        do = (
            "Bring it back there. The adapters alone leave without it: isthmus export --format huggingface, "
            "without --merged."
        )
        raise ConfigError(doing, f"the model folder {base}, which the run's adapters adapt", "none", do)
    model = replace(modules.read(kept, doing), path=base)
    module = adapters.added_to(model.load(model.dtype(doing), doing), base, doing)
    leaves = Model(module, ((EVERYTHING, "rda"),), torch.device("cpu"))
    _check_names(leaves.merged.keys(), arrays, doing)
    check_frozen(run, leaves.digests(), doing)
    leaves.write(arrays)
    return module.eval()


def merged(
    run: Path, settings: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], dtype: str | None, doing: str
) -> Any:
    """The folder's module with the adapters of a run in its tensors, in a dtype, or in the folder's."""
    import torch

    module = adapted(run, settings, arrays, doing)
    kind = module.dtype if dtype is None else getattr(torch, dtype)
    with modules.quiet():
        return module.float().merge_and_unload().to(kind)


def _folders(run: Path, settings: Mapping[str, Any]) -> tuple[Path, Path]:
    """What the run folder has of the model folder, and that folder."""
    return folder_kept(run, settings[FOLDER]), Path(settings[FOLDER])


def _check_names(names: Any, arrays: Mapping[str, Any], doing: str) -> None:
    if odd := sorted(names ^ arrays.keys()):
        do = "Use the versions of transformers and peft with which the model was trained."
        raise ConfigError(doing, "the adapters of this run", f"another {odd[0]!r}", do)
