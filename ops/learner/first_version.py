"""The first version of a model that does not begin at random: values that a run folder holds, by tensor.

Decides nothing: whoever made the run folder chose them (`programs.engine.request.weights`). Values that a file lacks
stay those of the task's `init`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.kernels.buffers import Float32

FOLDER: Final = "first"


def file_of(folder: Path, fragment: int) -> Path:
    """The file with the values of a fragment, each float32[n] by the name of its unit."""
    return folder / FOLDER / f"fragment-{fragment}.safetensors"


def begun_from(folder: Path | None, fragment: Fragment, values: Any) -> Any:
    """The values of a first version, float32[size]: those of `init`, `values`, but for what the run folder has."""
    if folder is None or not (path := file_of(folder, fragment.index)).exists():
        return values
    from safetensors.numpy import load_file

    first: Float32 = np.array(values, np.float32)
    given = load_file(path)
    for unit, (begin, end) in zip(fragment.units, pairwise(fragment.offsets), strict=True):
        if unit.name in given:
            first[begin:end] = given[unit.name]
    return first
