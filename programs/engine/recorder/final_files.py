"""The files of the final model: of tensors that have come, or of a state that was taken from its shard.

Decides how a file is made of another: its tensors in parts, so that no fragment is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from isthmus.ops.exchange import last_digests
from isthmus.ops.exchange.messages import FinalFile, FinalFragment
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER
from isthmus.programs.engine.snapshots.snapshots import PART_BYTES, VALUES
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import WholeFile, tensor_place, tensors_head, write_tensors

_ITEM: Final = np.dtype(np.float32).itemsize


def save_final(item: FinalFragment | FinalFile, path: Path, run: Path, disk: Disk) -> int:
    """Write the file of a final fragment, whole or not at all, of a run in this folder; returns the digest of its
    values. OSError of the disk."""
    if "file" in item:
        return _copy(cast(FinalFile, item), path, run, disk)
    tensors = item["tensors"]
    write_tensors(path, tensors, disk)
    return last_digests.digest_of(tensors.values())


def _copy(item: FinalFile, path: Path, run: Path, disk: Disk) -> int:
    if item["error"]:
        raise OSError(item["error"])
    source = run / FOLDER / item["file"]
    begin, end = tensor_place(source, VALUES, disk)
    shapes: dict[str, list[int]] = dict(item["units"])
    sizes = [_ITEM * math.prod(shape) for shape in shapes.values()]
    places = dict(zip(shapes, pairwise(accumulate(sizes, initial=begin)), strict=True))
    head, order = tensors_head(shapes)
    digest = last_digests.digest_of(np.frombuffer(part, np.float32) for part in _parts(source, begin, end, disk))
    with WholeFile(path, disk) as file:
        file.write(head)
        for name in order:
            for part in _parts(source, *places[name], disk):
                file.write(part)
        file.done()
    return digest


def _parts(path: Path, begin: int, end: int, disk: Disk) -> Iterator[Any]:
    """The bytes of a file from `begin` to `end`, a part at a time; OSError if it ends before."""
    for at in range(begin, end, PART_BYTES):
        part = disk.read_part(path, at, min(PART_BYTES, end - at))
        if len(part) != min(PART_BYTES, end - at):
            raise OSError(f"{path.name} ends at {at + len(part)} of {end} bytes")
        yield part
