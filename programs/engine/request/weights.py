"""The weights that a run begins from: tensors of safetensors files, compared with the model of a request.

Decides which leaves of a model come from a folder, and refuses weights of another form. Leaves are known by their
names, those of a run's final model: row ranges of a split tensor are joined.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from isthmus.ops.exchange.fragments import ROWS, Fragment
from isthmus.ops.learner.first_version import FOLDER as FIRST
from isthmus.ops.learner.first_version import file_of
from isthmus.programs.engine.snapshots.snapshot_files import FINAL
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.system.disk import check_regular
from isthmus.runtime.system.files import read_text, write_json
from isthmus.runtime.system.refusals import remedy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ORIGIN: Final = Path(FIRST, "origin.json")
"""In the folder of a run that does not begin at random."""
NAMES_MAX: Final = 4


def tensors_in(folder: Path, doing: str) -> dict[str, npt.NDArray[np.float32]]:
    """Every tensor in the folder's files; row ranges of a split one are joined. ConfigError for a damaged file, and for
    missing rows."""
    import ml_dtypes  # noqa: F401  # Gives NumPy the dtype bfloat16.
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    pieces: dict[str, dict[tuple[int, int], npt.NDArray[np.float32]]] = {}
    whole: dict[str, npt.NDArray[np.float32]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            check_regular(path)  # Mapped by a library, which would wait for a pipe.
            loaded = load_file(path)
        except (AttributeError, KeyError, TypeError) as error:  # Of a dtype that NumPy has not.
            do = "Take the model in float32, float16 or bfloat16."
            raise ConfigError(doing, f"{path.name}, with tensors of floats", str(error), do) from None
        except (OSError, SafetensorError) as error:
            do = "The file is damaged; take the model from another copy of the run."
            raise ConfigError(doing, f"{path.name}, whole", str(error), remedy(error, do)) from None
        for name, array in loaded.items():
            rows = ROWS.fullmatch(name)
            if rows is None:
                whole[name] = array
            else:
                pieces.setdefault(rows["name"], {})[int(rows["start"]), int(rows["stop"])] = array
    for name, parts in pieces.items():
        _check_rows(name, sorted(parts), doing)
        whole[name] = np.concatenate([parts[rows] for rows in sorted(parts)])
    return whole


def _check_rows(name: str, ranges: list[tuple[int, int]], doing: str) -> None:
    """ConfigError if rows are missing between the pieces of a tensor, or before them."""
    until = 0
    for start, stop in ranges:
        if start != until:
            do = "A file of the final model is missing; take the model from another copy of the run."
            raise ConfigError(doing, f"rows {until} to {start} of tensor {name!r}", "none of them", do)
        until = stop


def listed(names: Sequence[str]) -> str:
    """Some names, for people."""
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(map(repr, names[:NAMES_MAX])) + more


def origin_of(run: Path) -> str | None:
    """Where the weights were that a run began from; None for one that began at random."""
    try:
        return str(json.loads(read_text(run / ORIGIN))["where"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@final
class Weights(NamedTuple):
    """Tensors that a run begins from; `missing` leaves of the model are as `init` makes them, `more` are left out."""

    where: str
    tensors: dict[str, npt.NDArray[np.float32]]
    missing: list[str]
    more: list[str]

    @property
    def words(self) -> str:
        """What comes from there, for people."""
        parts = [f"begins from {self.where}: {len(self.tensors)} tensors"]
        parts += [f"as the task makes them: {listed(self.missing)}"] if self.missing else []
        parts += [f"left out: {listed(self.more)}"] if self.more else []
        return "; ".join(parts)

    def values(self, fragments: Sequence[Fragment]) -> list[npt.NDArray[np.float32]]:
        """The values of each fragment, float32[n]. ConfigError for one of which something is missing."""
        import numpy as np

        if self.missing:
            do = "Take the model from another copy of the run."
            raise ConfigError(f"Reading the model in {self.where}", "all of its tensors", listed(self.missing), do)
        rows = [
            [self._rows(unit.tensor, unit.start, unit.stop, unit.shape) for unit in fragment.units]
            for fragment in fragments
        ]
        return [np.concatenate([part for part in parts if part is not None]) for parts in rows]

    def write(self, folder: Path, fragments: Sequence[Fragment]) -> None:
        """Write the values of each fragment into a run folder. OSError of the disk."""
        import numpy as np
        from safetensors.numpy import save_file

        (folder / FIRST).mkdir(exist_ok=True)
        write_json(folder / ORIGIN, {"where": self.where})
        for fragment in fragments:
            path = file_of(folder, fragment.index)
            rows = {unit.name: self._rows(unit.tensor, unit.start, unit.stop, unit.shape) for unit in fragment.units}
            save_file({name: np.ascontiguousarray(part) for name, part in rows.items() if part is not None}, path)

    def _rows(self, tensor: str, start: int, stop: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32] | None:
        """The rows [start, stop) of a tensor of this shape, flat; None if it is not there."""
        array = self.tensors.get(tensor)
        if array is None:
            return None
        return array.reshape(shape if shape else (1,))[start:stop].astype("float32").reshape(-1)


def _wrong(doing: str, name: str, array: npt.NDArray[Any]) -> Fault | None:
    """What is wrong with the values of a tensor, which become those of a leaf in float32; None if nothing is."""
    import ml_dtypes
    import numpy as np

    if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        do = "Take weights as they were trained: whole numbers and truth values are no parameters."
        return Fault(doing, f"tensor {name!r} of floats, as its leaf is", str(array.dtype), do)
    values = array.reshape(-1)
    for begin in range(0, values.size, _PART):
        with np.errstate(over="ignore"):
            part = values[begin : begin + _PART].astype(np.float32)
        if wrong := int(part.size - np.count_nonzero(np.isfinite(part))):
            index, value = begin + int(np.flatnonzero(~np.isfinite(part))[0]), part[~np.isfinite(part)][0]
            more = f", and {wrong - 1:,} more near it" if wrong > 1 else ""
            do = "Take an earlier snapshot, or another model: a run that begins from this one trains nothing."
            return Fault(doing, f"tensor {name!r} of finite values in float32", f"{value} at {index:,}{more}", do)
    return None


_PART: Final = 1 << 22
"""Values of a tensor that are looked at together."""


def weights_of(where: Path, fragments: Sequence[Fragment]) -> Weights:
    """The weights in a run with a final model, or in a folder of safetensors, for a model of these fragments.

    ConfigError, with all faults, for a tensor of another shape or kind, for values that are not finite, for no tensor
    in common, and for a program that exchanges no fragments.
    """
    doing = f"Beginning from {where}"
    if not fragments:
        do = "Choose decoupled-diloco, diloco or streaming-diloco."
        raise ConfigError(doing, "a program that exchanges fragments", "one whose learners begin each for itself", do)
    folder = where / FINAL if (where / FINAL).is_dir() else where
    found = tensors_in(folder, doing)
    if not found:
        do = "Name a run that is over, or a folder of safetensors such as its snapshots/final."
        actual = "no such folder" if not where.is_dir() else "no file *.safetensors in it"
        raise ConfigError(doing, f"a model in {folder}", actual, do)
    shapes = {unit.tensor: tuple(unit.shape) for fragment in fragments for unit in fragment.units}
    common = {name: array for name, array in found.items() if name in shapes}
    faults = [
        Fault(doing, f"tensor {name!r} of shape {list(shapes[name])}", f"{list(array.shape)}", "Take the same sizes.")
        for name, array in sorted(common.items())
        if tuple(array.shape) != shapes[name]
    ]
    faults += [fault for name, array in sorted(common.items()) if (fault := _wrong(doing, name, array)) is not None]
    if not common:
        expected, actual = f"tensors of the model, such as {listed(sorted(shapes))}", listed(sorted(found))
        faults.append(Fault(doing, expected, actual, "Take weights of the same task: leaves are known by their names."))
    if faults:
        raise ConfigError.of(faults)
    missing = sorted(shapes.keys() - common.keys())
    return Weights(str(where), common, missing, sorted(found.keys() - common.keys()))
