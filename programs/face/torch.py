"""Tasks in PyTorch, `isthmus.torch.Task(build, loss, batch, ...)`, and `isthmus.torch.Callback()` for the Trainer of
transformers. Needs the extra `isthmus[torch]`; the callback also transformers, which is imported when it is used."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

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
    from isthmus.programs.trainer_callback import Callback

__all__ = ["Callback", "Task"]


def __getattr__(name: str) -> Any:
    """The callback, when it is first used."""
    if name != "Callback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("transformers") is None:
        do = "Install it beside isthmus: pip install 'transformers[torch]'."
        raise ConfigError("Using isthmus.torch.Callback", "transformers", "none", do)
    from isthmus.programs.trainer_callback import Callback

    return Callback
