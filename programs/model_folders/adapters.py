"""Adapters of low rank below a model folder: LoRA (arXiv 2106.09685), as peft computes and writes it.

Decides which layers of a folder's model get an adapter, and refuses what cannot have one. A linear layer `y = W x` of
`out` rows and `in` columns becomes `y = W x + alpha / rank * B A x`, where A is float32[rank, in] and B
float32[out, rank]. W is frozen; A begins at random, B at zero, so that the adapted model begins as the folder's. The
output head has no adapter: it is often the embedding, and merging would untie the two. Importing this module imports no
framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, final

from isthmus.programs.model_folders.modules import ModuleFolder, explained, quiet
from isthmus.runtime.errors import ConfigError, Fault, nearest

ALPHA_SHARE: Final = 2.0
"""The default alpha, in ranks: so the factor of B A is the same at any rank, and a learning rate fits all of them."""
_ALL: Final = "all-linear"
"""peft's word for every linear layer but the output head."""
_NAME: Final = "default"
"""The name under which peft keeps an adapter."""


@final
@dataclass(frozen=True, slots=True)
class Adapters:
    """What is asked of adapters: `modules` are names of layers, or the ends of names at a dot; none are all layers."""

    rank: int
    alpha: float
    modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self | None:
        """Those that the settings `lora_*` of a task ask for; None where all weights are trained."""
        rank, alpha, modules = (settings[f"lora_{each}"] for each in ("rank", "alpha", "modules"))
        return None if rank is None else cls(rank, alpha_of(rank) if alpha is None else alpha, tuple(modules))

    def check(self, model: ModuleFolder, doing: str) -> None:
        """ConfigError, with every fault, where peft is missing, a name is that of no layer, or the rank exceeds the
        width of a layer, beyond which B A has no more of it."""
        _peft()
        widths = _widths(model, doing)
        ends = [*dict.fromkeys(name.rsplit(".", 1)[-1] for name in widths)]
        faults = []
        for end in self.modules:
            if not any(_ends_with(name, end) for name in widths):
                do = f"{nearest(end, ends)} This model has {', '.join(ends) or 'none'}."
                faults.append(Fault("Setting task.lora_modules", "names of linear layers", repr(end), do.strip()))
        adapted = [
            (width, name)
            for name, width in widths.items()
            if not self.modules or any(_ends_with(name, end) for end in self.modules)
        ]
        if not faults and not adapted:
            do = "Leave task.lora_rank out: all weights are trained."
            faults.append(Fault("Setting task.lora_rank", "a model with linear layers", "none", do))
        if adapted and self.rank > min(adapted)[0]:
            width, name = min(adapted)
            do = "Set it to fewer, such as 8, or name wider layers in task.lora_modules."
            faults.append(Fault("Setting task.lora_rank", f"at most {width}, the width of {name}", str(self.rank), do))
        if faults:
            raise ConfigError.of(faults)

    def added_to(self, module: Any, base: Path, doing: str) -> Any:
        """A module of transformers with adapters, as peft makes it: they alone need a gradient.

        A is drawn from torch's generator. `base`: the folder that an export names as what it adapts.
        """
        peft = _peft()
        modules = list(self.modules) or _ALL
        settings = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, target_modules=modules, lora_dropout=0.0, bias="none",
            task_type="CAUSAL_LM",
        )  # fmt: skip
        with quiet(), explained(doing, f"layers of {type(module).__name__} that peft adapts"):
            adapted = peft.get_peft_model(module, settings)
        adapted.peft_config[_NAME].base_model_name_or_path = str(base)
        return adapted

    def bare(self, model: ModuleFolder, base: Path, doing: str) -> Any:
        """The adapted module without values."""
        import torch

        with torch.device("meta"):
            return self.added_to(model.empty(torch.device("meta")), base, doing)


def alpha_of(rank: int) -> float:
    """The default alpha of a rank."""
    return ALPHA_SHARE * rank


def _peft() -> Any:
    """The library; ConfigError where it is missing."""
    try:
        import peft
    except ImportError:
        do = "Install it beside isthmus: pip install peft. Or leave task.lora_rank out: all weights are trained."
        raise ConfigError("Setting task.lora_rank", "the library peft", "none", do) from None
    return peft


def _widths(model: ModuleFolder, doing: str) -> dict[str, int]:
    """The smaller side of each linear layer that may have an adapter, by name."""
    import torch
    from transformers.pytorch_utils import Conv1D

    with explained(doing, f"a model of {model.config.model_type}"):
        module = model.empty(torch.device("meta"))
    head = module.get_output_embeddings()
    return {
        name: min(layer.weight.shape)
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear | Conv1D) and layer is not head
    }


def _ends_with(name: str, end: str) -> bool:
    """Whether peft takes `end` for this layer."""
    return name == end or name.endswith(f".{end}")
