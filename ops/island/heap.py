"""What malloc keeps of free memory.

glibc has blocks from the kernel one by one from a size on, and gives such a block back when it is free. Smaller ones
lie in heaps, where what is free stays for later ones. That size grows with the blocks that are freed, up to 32 MiB, so
that a program that frees and takes the same few megabytes again and again need not have their pages cleared each time.
A host of a large model frees fragments of 4 to 32 MiB now and then, in several threads with a heap each: measured, free
blocks were as much as two models (docs/decisions/0048).
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Final

MODEL_BYTES_MIN: Final = 32 << 20
"""Of a model, in float32. The gradients of a larger one are beyond 32 MiB, so a step has its pages cleared anyway."""
_BLOCK_BYTES_MIN: Final = 4 << 20
_M_MMAP_THRESHOLD: Final = -3


def give_back() -> None:
    """Have malloc keep nothing that is free."""
    _of_libc("malloc_trim")(0)


def keep_no_large_blocks(model_bytes: int) -> None:
    """Have malloc give back each block of 4 MiB and more once it is free, from now on, in the host of a large model."""
    if model_bytes >= MODEL_BYTES_MIN:
        _of_libc("mallopt")(_M_MMAP_THRESHOLD, _BLOCK_BYTES_MIN)


@lru_cache(maxsize=2)
def _of_libc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, lambda *_: 0)  # Other C libraries than glibc have none.
