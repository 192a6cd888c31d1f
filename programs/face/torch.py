"""Tasks in PyTorch, `isthmus.torch.Task(build, loss, batch, ...)`, and callbacks that make a trainer's loop a learner:
`isthmus.torch.Callback()` for the Trainer of transformers, `isthmus.torch.LightningCallback()` for that of Lightning;
and `isthmus.torch.LedSchedule(...)`, by which the scheduler of any other loop ends when the run does.

Needs the extra `isthmus[torch]`; a callback also its trainer, which is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from isthmus.runtime.errors import ConfigError

if find_spec("torch") is None:
    raise ConfigError(
        "Importing isthmus.torch",
        "PyTorch",
        "none",
        "Install it beside isthmus: in a clone, pip install -e '.[torch]'.",
    )

from isthmus.programs.torch_task import TorchTask as Task

if TYPE_CHECKING:
    from isthmus.programs.led_schedule import LedSchedule
    from isthmus.programs.lightning_callback import LightningCallback
    from isthmus.programs.trainer_callback import Callback

__all__ = ["Callback", "LedSchedule", "LightningCallback", "Task"]

_LATER: Final = {
    "Callback": ("isthmus.programs.trainer_callback", ("transformers",), "transformers[torch]"),
    "LedSchedule": ("isthmus.programs.led_schedule", ("torch",), "torch"),
    "LightningCallback": ("isthmus.programs.lightning_callback", ("lightning", "pytorch_lightning"), "lightning"),
}
"""The module of each, the packages of which it needs one, and what to install."""


def __getattr__(name: str) -> Any:
    """What is imported when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, packages, install = _LATER[name]
    if not any(map(find_spec, packages)):
        do = f"Install it beside isthmus: pip install '{install}'."
        raise ConfigError(f"Using isthmus.torch.{name}", " or ".join(packages), "none", do)
    return getattr(import_module(module), name)
