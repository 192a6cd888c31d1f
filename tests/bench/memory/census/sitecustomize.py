"""Says what holds the memory of every host of a run whose PYTHONPATH has this folder, at its highest.

Each time that the anonymous memory of a host has grown by a share, a census of it goes to CENSUS_FOLDER/HOST.json: what
of it tracemalloc knows (NumPy's arrays are known to it, by the lines that made them), what jax's live arrays take, what
glibc has from the kernel and does not use, and what lies on the shelves of lent memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

FRAMES = 6
EVERY_SECONDS = 0.1
GROWTH = 1.02
LARGE_BYTES = 1 << 18


class _Mallinfo(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def _status() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.endswith(" kB")}


def _lines() -> dict[str, int]:
    """Bytes of large allocations by the nearest lines of this project that made them."""
    found: Counter[str] = Counter()
    for trace in tracemalloc.take_snapshot().traces if tracemalloc.is_tracing() else ():
        if trace.size >= LARGE_BYTES:
            own = [frame for frame in trace.traceback if any(f"/{part}/" in frame.filename for part in _OWN)]
            frames = own[-3:] or list(trace.traceback)[-2:]
            found[" < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(frames))] += trace.size
    return dict(found.most_common(25))


_OWN = ("ops", "runtime", "programs")


def _arrays() -> dict[str, int]:
    jax = sys.modules.get("jax")
    if jax is None or "jax._src.array" not in sys.modules:
        return {}
    found: Counter[str] = Counter()
    seen = set()
    try:
        arrays = jax.live_arrays()
    except Exception:
        return {}
    for array in arrays:
        try:
            pointer = array.unsafe_buffer_pointer()
            array.nbytes
        except Exception:
            continue
        if array.nbytes >= LARGE_BYTES and pointer not in seen:
            seen.add(pointer)
            found["jax"] += array.nbytes
    return dict(found)


def _shelves() -> dict[str, int]:
    found = {}
    for module, name in (
        ("isthmus.ops.kernels.buffers", "_shelf"),
        ("isthmus.runtime.items.decoding", "_shelf"),
    ):
        shelf: Any = getattr(sys.modules.get(module), name, [])
        found[module] = sum(len(block) for block, _ in getattr(shelf, "_blocks", shelf))
    return found


def _fires() -> bool:
    """Whether a node's body is being called: what was before is compiling, which tracemalloc makes slow."""
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_qualname == "Bodies.fire":
                return True
            frame = frame.f_back
    return False


def _census(folder: Path, host: str) -> None:
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = _Mallinfo
    highest, begun = 0, time.monotonic()
    curve = []
    told: dict[str, Any] = {}
    while True:
        if "CENSUS_LINES" in os.environ and not tracemalloc.is_tracing() and _fires():
            tracemalloc.start(FRAMES)
        status = _status()
        anon = status["RssAnon"]
        curve.append((round(time.monotonic() - begun, 2), anon >> 20))
        if anon > highest * GROWTH:
            highest = anon
            info = libc.mallinfo2()
            told = {
                "at": time.monotonic() - begun,
                "anon": anon,
                "file": status["RssFile"] + status["RssShmem"],
                "malloc_mmapped": info.hblkhd,
                "malloc_used": info.uordblks,
                "malloc_free": info.fordblks,
                "arrays": _arrays(),
                "shelves": _shelves(),
                "lines": _lines(),
                "traced": tracemalloc.get_traced_memory()[0],
            }
        path = folder / f"{host.replace('/', '-')}-{os.getpid()}.json"
        path.with_suffix(".part").write_text(json.dumps({**told, "host": host, "curve": curve}))
        path.with_suffix(".part").rename(path)
        time.sleep(EVERY_SECONDS)


_has_begun: list[int] = []


def _begin(frame: FrameType, event: str, argument: Any) -> None:
    """The first event of a new thread."""
    sys.setprofile(None)
    name = threading.current_thread().name
    if ":" in name and "/" in name and os.getpid() not in _has_begun:
        _has_begun.append(os.getpid())
        host = name.split(":")[0]
        threading.Thread(target=_census, args=(Path(os.environ["CENSUS_FOLDER"]), host), daemon=True).start()


if "CENSUS_FOLDER" in os.environ:
    threading.setprofile(_begin)
