"""The models that stay with a site: the last one of its learner's own, and the last of all that this learner adopted.

Decides which these are, and leaves them in the run's folder on the site's machine; nothing of them is sent. Its daemon
makes folders of them that commands read (`programs.engine.machine.kept_models`).

- Its **own last** model is its parameters just before the first adoption behind its last step: at that boundary the
  run's last versions, or those of the last rounds before, begin to replace what it has trained. Of a learner that ends
  otherwise, it is what it has at its end.
- The **global** model is the newest version of every fragment that it holds at its end: of a run that is over the final
  one.

The parameters are read once, at one boundary, and written beside what the learner does next: no answer waits for a
disk. Leaves that are local, or frozen, are in neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np

from isthmus.ops.data.site_folders import GLOBAL, NOTE, OWN, folder_of
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.kernels.buffers import Float32
from isthmus.ops.learner.boundary import Boundary, Companion


@final
class SiteModels(Companion):
    """The models that one life of a learner leaves; a later life in its slot replaces them."""

    def __init__(self, boundary: Boundary) -> None:
        self._at = boundary
        self._final = set[int]()
        self._own: list[Float32] | None = None
        """The parameters just before an adoption, by fragment."""
        self._own_step = self._adopted_step = -1
        """The steps before these were read, and before the last adoption."""
        self._writing: Any = None
        self._is_kept = False

    # -- at a boundary -------------------------------------------------------------------------------------------------

    def adopting(self, *, is_last: bool) -> None:
        """Read the learner's parameters, if no step follows the adoption."""
        step = self._at.odometer.steps
        is_first_since = step not in (0, self._adopted_step)
        self._adopted_step = step
        if is_first_since and (is_last or self._at.context.leave_requested()):
            self._read()

    def adopted(self, fragment: int, *, is_last: bool) -> None:
        (self._final.add if is_last else self._final.discard)(fragment)

    def before_step(self) -> bool:
        """Keep both models, once the last version of every fragment is there."""
        if not self._is_kept and len(self._final) == len(self._at.held) and self._at.phase() == "final":
            self._is_kept = True
            self._writing = self._at.context.disk.write_beside(self._write())
        return False

    def closing(self) -> None:
        """Keep what there is, where this life ends before the run does."""
        if self._writing is not None:
            self._writing.join()
        if not self._is_kept and self._at.odometer.steps and all(self._at.held):
            self._is_kept = True
            self._write()()

    # -- what ----------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        at = self._at
        self._own = [np.array(at.learner.extract(p), np.float32) for p in range(len(at.fragments))]
        self._own_step = at.odometer.steps

    def _write(self) -> Any:
        """What writes the models of this moment."""
        at = self._at
        # The other processes of an island may be gone by now: of such a one only what was read is known.
        is_alone = at.context.island is None or at.context.island.size == 1
        if self._own_step != at.odometer.steps and at.odometer.steps and is_alone:
            self._read()
        own = self._own if self._own_step == at.odometer.steps else None
        if own is not None and not all(bool(np.isfinite(values).all()) for values in own):
            own = None
        held = [each for each in at.held if each is not None]
        member = at.context.member
        note = {
            "learner": member.replica.slot,
            "incarnation": member.incarnation,
            "steps": at.odometer.steps,
            "tokens": at.odometer.tokens,
            "has_own": own is not None,
            "is_final": len(self._final) == len(at.held),
            "versions": [list(each.ledger.base) for each in held],
        }
        models: dict[str, Sequence[Any]] = {GLOBAL: [each.anchor for each in held]}
        if own is not None:
            models = {OWN: own, **models}
        self._own = None
        return partial(self._write_all, models, note)

    def _write_all(self, models: Mapping[str, Sequence[Any]], note: Mapping[str, Any]) -> None:
        """Write models whole, or none; a disk that takes no more leaves none."""
        at, disk = self._at, self._at.context.disk
        if at.context.folder is None:
            return
        folder = folder_of(Path(at.context.folder), at.context.member.replica.slot)
        with suppress(OSError):
            disk.remove(folder / NOTE)  # Those of a life before are overwritten, one by one.
            for name, values in models.items():
                for fragment, each in zip(at.fragments, values, strict=True):
                    self._write_file(folder / name / f"fragment-{fragment.index}.safetensors", encoded(fragment, each))
            self._write_file(folder / NOTE, json.dumps(note).encode())

    def _write_file(self, path: Path, data: bytes) -> None:
        """Write a file, whole or not at all."""
        disk = self._at.context.disk
        beside = disk.beside(path)
        try:
            with closing(disk.create(beside)) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(bytes(view)) :]
                file.sync()
            disk.rename(beside, path)
        finally:
            with suppress(OSError):
                disk.remove(beside)


def encoded(fragment: Fragment, values: Any) -> bytes:
    """A safetensors file of a fragment's values, float32[n], by the names of its units."""
    from safetensors.numpy import save

    flat, cuts = np.asarray(values, np.float32), pairwise(fragment.offsets)
    return save(
        {
            unit.name: np.ascontiguousarray(flat[begin:end].reshape(unit.values_shape))
            for unit, (begin, end) in zip(fragment.units, cuts, strict=True)
        }
    )
