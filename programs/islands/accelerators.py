"""The accelerators that this machine has and its jax can use, found without jax: by device files and installed plugins.

The process that starts a backend has the devices: on a TPU no other can then, on a GPU most of its memory is taken. So
only the hosts that compute start one, and facts that are needed before that are looked up here. The user's environment
variables for platforms and visible devices are a bound.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

Platform: TypeAlias = Literal["cuda", "tpu"]

VISIBLE: Final[Mapping[Platform, str]] = {"cuda": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}
"""The variable with the devices of a platform that a process sees."""
_PLUGINS: Final[Mapping[Platform, tuple[str, ...]]] = {
    "cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    "tpu": ("libtpu",),
}
_FILES: Final[Mapping[Platform, re.Pattern[str]]] = {
    "cuda": re.compile(r"nvidia\d+"),
    "tpu": re.compile(r"accel\d+|vfio/\d+"),
}


class Accelerators(NamedTuple):
    """The devices of one platform, by the numbers or names under which they are made visible."""

    platform: Platform
    ids: tuple[str, ...]


def find(environment: Mapping[str, str] = os.environ, root: Path = Path("/dev")) -> Accelerators | None:
    """The accelerators of this machine; None if jax has to compute on the CPU."""
    files = [path.relative_to(root).as_posix() for path in (*root.glob("*"), *root.glob("vfio/*"))]
    installed = [name for names in _PLUGINS.values() for name in names if find_spec(name) is not None]
    return usable(environment, files, installed)


def usable(environment: Mapping[str, str], files: Iterable[str], installed: Iterable[str]) -> Accelerators | None:
    """The usable accelerators, from the device files below /dev and the installed plugins of jax.

    As in CUDA, a negative number hides all that are named after it.
    """
    wanted = environment.get("JAX_PLATFORMS", "").split(",")[0]
    there, plugins = sorted(files), frozenset(installed)
    for platform in ("tpu", "cuda"):
        is_asked = not wanted or wanted == platform or (platform, wanted) == ("cuda", "gpu")
        count = sum(_FILES[platform].fullmatch(name) is not None for name in there)
        if is_asked and count and not plugins.isdisjoint(_PLUGINS[platform]):
            visible = environment.get(VISIBLE[platform])
            ids = [str(number) for number in range(count)] if visible is None else visible.split(",")
            named = (each.strip() for each in ids if each.strip())
            known = tuple(takewhile(lambda name: not name.startswith("-"), named))
            return Accelerators(platform, known) if known else None
    return None
