"""The state of one learner of a module in PyTorch: fragments in and out, whole trees, local leaves.

Decides nothing about steps: those of a task are made in `torch_learner`, those of a user's own loop there.

Leaves stay where the module has them: a fragment leaves by one copy, into a payload of its own, and enters by one copy,
into the parameters. Local leaves are the optimizer's state and the module's local leaves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.exchange.merge_rules import RULES
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.island.host_waits import HostWaits
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.torch_codes import LeavingCodes
from isthmus.ops.island.torch_device import reach
from isthmus.ops.island.torch_model import ArrayForm, LeafCut, Model, OptimizerState, form_of, tensor_of

_KEYS: Final = 5
"""Numbers that name a life, and one of its steps."""
_WORD: Final = 0xFFFF_FFFF


class TorchState(ABC):
    """All of a `SoleLearning` but how it begins and steps."""

    def __init__(
        self, model: Model, moments: OptimizerState, fragments: Sequence[Fragment], *, life: LearnerLife, alpha: float
    ) -> None:
        self._model, self._moments = model, moments
        self._device = reach(model.device)
        self._fragments, self._alpha = tuple(fragments), alpha
        self._device.expect(2 * 4 * max((each.size for each in self._fragments), default=0))
        self._first_local = {path: tensor.detach().clone() for path, tensor in model.local.items()}
        self._words = [life.seed & _WORD, life.seed >> 32, life.slot, life.incarnation]
        self._step_number = 0

    @property
    def device_kind(self) -> str:
        """The accelerator's name, as its driver reports it."""
        device = self._model.device
        return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type

    @property
    def host_waits(self) -> HostWaits:
        """What this host waits for on the device."""
        return self._device.waits

    def compile(self, batch: Any) -> None:
        """No-op: what `torch.compile` compiles it compiles in the first step."""
        return

    # -- fragments -----------------------------------------------------------------------------------------------------

    def extract(self, fragment: int) -> Any:
        """The values of a fragment after the steps so far, float32[n] to NumPy, in memory of their own: where the
        device is apart they are captured there, and on their way."""
        if (whole := self._whole(fragment)) is not None:
            captured = self._device.room(self._fragments[fragment].size)
            for (_, part), values in zip(self._parts(fragment, captured), whole, strict=True):
                part.copy_(values)
            return self._device.leave(captured, "answer")
        if (gathered := self._gathered(fragment)) is not None:
            return gathered
        values = np.empty(self._fragments[fragment].size, np.float32)
        payload = torch.from_numpy(values)
        for unit, part in self._parts(fragment, payload):
            self._model.access.fetch(self._model.merged[unit.tensor], part, _rows(unit))
        return values

    def _gathered(self, fragment: int) -> Any:
        """The same from several processes whose devices are apart; None where that is not the way."""
        if not self._device.is_apart:
            return None
        cut, merged = self._fragments[fragment], self._model.merged
        cuts = [
            LeafCut(merged[unit.tensor], _rows(unit), slice(begin, end), unit.values_shape)
            for unit, (begin, end) in zip(cut.units, pairwise(cut.offsets), strict=True)
        ]
        return self._model.access.gather(cuts, cut.size)

    @property
    def codes(self) -> tuple[str, ...]:
        """The formats in which outer gradients are coded on the device: all, where it is apart and this process has all
        of the module. On a CPU none is: its memory is the host's."""
        return CODED if self._fragments and self._whole(0) is not None else ()

    def code(self, fragment: int, anchor: Vector, push: str) -> LeavingCodes:
        """The outer gradient of a fragment after the steps so far, from its anchor float32[n], in one of `codes`, on
        its way to the host."""
        whole = self._whole(fragment)
        assert whole is not None
        return LeavingCodes(
            self._fragments[fragment], push, whole, self._device.arrive(tensor_of(anchor)), self._device
        )

    def carry(self, fragment: int, values: Vector, since: Any) -> bool:
        """Replace a fragment by `values`, float32[n], plus itself minus `since`, on the device.

        `since` is an `extract` or an anchor of it. False, and nothing is done, unless the device is apart. Units that
        are means of values are replaced: a difference of two variances may be below zero.
        """
        whole = self._whole(fragment)
        if whole is None:
            return False
        new, then = (self._device.arrive(tensor_of(np.asarray(each))) for each in (values, since))
        units = zip(self._parts(fragment, new), self._parts(fragment, then), whole, strict=True)
        for (unit, part), (_, before), held in units:
            if RULES[unit.merge].steps:
                # Of an anchor what the leaf's dtype took away was not trained.
                part += held.to(part.dtype) - before.to(held.dtype).to(part.dtype)
            held.copy_(part)
        return True

    def adopt(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by alpha times itself and 1 - alpha times `values`."""
        for unit, part in self._parts(fragment, tensor_of(values)):
            self._model.access.store(self._model.merged[unit.tensor], part, _rows(unit), alpha=self._alpha)

    def replace(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by `values`, regardless of its present values."""
        for unit, part in self._parts(fragment, tensor_of(values)):
            self._model.access.store(self._model.merged[unit.tensor], part, _rows(unit))

    def _whole(self, fragment: int) -> list[torch.Tensor] | None:
        """The units of a fragment, where they lie; None unless the device is apart, and this process has them all."""
        if not self._device.is_apart:
            return None
        access, merged = self._model.access, self._model.merged
        units = [access.whole(merged[unit.tensor], _rows(unit)) for unit in self._fragments[fragment].units]
        return None if any(each is None for each in units) else [each for each in units if each is not None]

    def _parts(self, fragment: int, payload: torch.Tensor) -> Iterator[tuple[Unit, torch.Tensor]]:
        """The units of a fragment, with the parts of its payload, in their shape."""
        cut = self._fragments[fragment]
        for unit, (begin, end) in zip(cut.units, pairwise(cut.offsets), strict=True):
            yield unit, payload[begin:end].view(unit.values_shape)

    def frozen(self) -> Digests:
        """The digests of the frozen leaves."""
        return self._model.digests()

    # -- whole trees ---------------------------------------------------------------------------------------------------

    def adopt_tree(self, parameters: Any) -> None:
        """Replace all merged leaves by those of a tree as `tree` gives it."""
        self._model.write(parameters)

    def copy(self) -> dict[str, Any]:
        """A copy of all merged leaves after the steps so far, by path; from a device that is apart on its way."""
        return {path: self._copied(leaf) for path, leaf in self._model.merged.items()}

    def _copied(self, leaf: torch.Tensor) -> Any:
        copied = leaf.detach().clone()
        is_whole = self._device.is_apart and self._model.access.whole(leaf) is not None
        return self._device.leave(copied, "leaves") if is_whole else copied

    def tree(self, leaves: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """A copy in NumPy arrays of its own, by path."""
        return {
            path: self._model.array(leaf) if torch.is_tensor(leaf) else np.array(leaf) for path, leaf in leaves.items()
        }

    # -- local leaves --------------------------------------------------------------------------------------------------

    @abstractmethod
    def restart(self) -> None:
        """Initialize the local leaves for the present merged leaves.

        No counters go on: a rate follows the run's progress, and what counts an optimizer's steps corrects the bias of
        moments that begin anew.
        """

    def _restart_module(self) -> None:
        """Make the module's local leaves what they were at first."""
        with torch.no_grad():
            for path, leaf in self._model.local.items():
                leaf.copy_(self._first_local[path])

    def count_from(self, steps: int) -> None:
        """Initialize the local leaves; there are no counters."""
        return

    def local(self) -> Iterable[np.ndarray[Any, Any]]:
        """The local leaves, in NumPy arrays of their own, each after the steps made when it is read."""
        yield from self._moments.arrays()
        for leaf in self._model.local.values():
            yield self._model.array(leaf)

    def take_local(self, leaves: Sequence[Any]) -> bool:
        """Replace the local leaves by `leaves`, in the form that `local` returns; False if their forms differ."""
        if _forms(leaves) != self._forms():
            return False
        count = len(leaves) - len(self._model.local)
        self._moments.take(list(leaves[:count]))
        self._write(self._model.local, leaves[count:])
        return True

    def lend(self) -> list[np.ndarray[Any, Any]]:
        """The optimizer's state of merged parameters, in NumPy arrays of their own; empty if it keeps none."""
        return list(self._moments.arrays(of_merged=True))

    def borrow(self, leaves: Sequence[Any]) -> bool:
        """Replace that state by `leaves`, in the form that `lend` returns; False if empty or of another form."""
        if not leaves or _forms(leaves) != self._moments.forms(of_merged=True):
            return False
        self._moments.take(list(leaves), of_merged=True)
        return True

    def own(self, *, whole: bool) -> list[np.ndarray[Any, Any]]:
        """`local`, preceded by int64[5]: the words of the life whose numbers are drawn, and its steps.

        If `whole`, the merged leaves follow.
        """
        keys = np.array([*self._words, self._step_number], np.int64)
        return [keys, *self.local(), *(map(self._model.array, self._model.merged.values()) if whole else ())]

    def take_own(self, leaves: Sequence[Any]) -> bool:
        """Continue from leaves in the form that `own` returns, with the random numbers that would have come next."""
        keys, local, merged = leaves[:1], leaves[1 : 1 + self._count], leaves[1 + self._count :]
        if _forms(keys) != [ArrayForm((_KEYS,), np.dtype(np.int64))]:
            return False
        if _forms(merged) not in ([], list(map(form_of, self._model.merged.values()))) or not self.take_local(local):
            return False
        if merged:
            self._write(self._model.merged, merged)
        *self._words, self._step_number = (int(each) for each in self._model.access.share(keys[0]))
        return True

    def _write(self, leaves: Mapping[str, Any], arrays: Sequence[Any]) -> None:
        """Replace leaves by arrays, where they lie."""
        for leaf, array in zip(leaves.values(), arrays, strict=True):
            self._model.access.store(leaf, tensor_of(array).reshape(leaf.shape))

    @property
    def _count(self) -> int:
        """The number of arrays in `local`."""
        return len(self._forms())

    def _forms(self) -> list[ArrayForm]:
        """Forms of the optimizer's state and the module's local leaves."""
        return [*self._moments.forms(), *map(form_of, self._model.local.values())]


def _forms(arrays: Sequence[Any]) -> list[ArrayForm]:
    return [ArrayForm(tuple(array.shape), array.dtype) for array in arrays]


def _rows(unit: Unit) -> slice | None:
    return slice(unit.start, unit.stop) if unit.is_split else None
