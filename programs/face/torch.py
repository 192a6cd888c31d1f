"""Tasks in PyTorch: `isthmus.torch.Task(build, loss, batch, ...)`. Needs the extra `isthmus[torch]`."""

from __future__ import annotations

from importlib.util import find_spec

from isthmus.runtime.errors import ConfigError

if find_spec("torch") is None:
    raise ConfigError(
        "Importing isthmus.torch",
        "PyTorch",
        "none",
        "Install it beside isthmus: in a clone, pip install -e '.[torch]'.",
    )

from isthmus.programs.torch_task import TorchTask as Task

__all__ = ["Task"]
