"""An island whose loop runs in several processes: torchrun's ranks, with whole leaves (DDP) or shards of them (FSDP2).

Rank 0 speaks: it alone has a host, and its learner is the island's. Every rank has the same module, optimizer and
learner, and makes the same calls of them in one order, which rank 0 gives (`LeadLearner`, `FollowHost`). An order names
a call; values cross inside of it, leaf by leaf: `Ranks` reads leaves to rank 0, and cuts what rank 0 writes. So
learner, moments and model are the code of one process.

All of it goes over a gloo group of our own, in the thread of the user's loop, but for the answers of shards on devices
that are apart: these cross beside the loops (`torch_shards`). A boundary has two messages, where
nothing is exchanged: the sum of what the ranks have trained on, and rank 0's order to go on, with what it has found.

A rank that is gone closes its connections: then the others end by an error. Nobody waits for a rank that lives, but
does not come, longer than the home waits for a step of rank 0.

Of what differs between ranks and is not sharded, such as buffers, rank 0's values count. How gradients are averaged,
and how data are divided among the ranks of one island, is the script's.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, final

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.gang.orders import RemoteLearner, call
from isthmus.ops.island.assembly import Assembled
from isthmus.ops.island.host_waits import HostWaits
from isthmus.ops.island.life import IslandSlot, LearnerLife, Tensors
from isthmus.ops.island.torch_device import reach
from isthmus.ops.island.torch_model import ArrayForm, LeafCut, Model, form_of, mix, tensor_of
from isthmus.ops.island.torch_shards import PartCrossing, RankPiece

WAIT_MAX: Final = timedelta(days=7)
"""For an order: rank 0 may wait for a first model, or for the next evaluation. Its home judges whether it is alive."""
FRAME_BYTES: Final = 256
"""Of an order, with its length in front; what is longer has a second message."""
_LENGTH_BYTES: Final = 8

Box: TypeAlias = tuple[slice, ...] | None
"""The part of a leaf that a rank has, along each axis; None if it has nothing."""


class RankError(RuntimeError):
    """A rank of this island that is gone, or at another place than the others."""


@final
class Ranks:
    """The ranks of one island, in each of them (`LeafAccess`); every method but `close` is called by all at once.

    `module` has to be the same in all of them.
    """

    def __init__(self, module: Any) -> None:
        self._group: Any = dist.new_group(backend="gloo", timeout=WAIT_MAX)
        self._rank, self.size = dist.get_rank(), dist.get_world_size()
        self._sharded = [each for each in module.modules() if isinstance(each, FSDPModule)]
        self._boxes = dict[Any, list[Box]]()
        self._scalar: MeanScalar | None = None
        self._crossing: PartCrossing | None = None
        self.led: RankLearner | None = None
        """The learner of this rank, once it is made."""
        self.budget_share: float | None = None
        """Of the budget, at the last step that rank 0's learner was let make."""
        self.is_to_leave = False
        """Whether this rank was given notice: the next boundary tells it to all."""

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0."""
        return bool(self._rank == 0)

    def settle(self) -> None:
        """Have FSDP2's modules hold shards: they hold whole parameters after a forward pass without a backward one."""
        for each in self._sharded:
            each.reshard()

    @property
    def access(self) -> Ranks:
        """What reads and writes leaves."""
        return self

    def learner(self, learner: RankLearner, *made_of: Any) -> RankLearner | LeadLearner:
        """The learner of this rank; `made_of` is what all make theirs of."""
        self.led = learner
        if not self.is_leader:
            return learner
        self.give("make", *made_of)
        return LeadLearner(learner, self)

    def judge(self, judge: Judging | None) -> Judging | None:
        """The evaluation of this rank."""
        return LeadJudge(judge, self) if self.is_leader and judge is not None else judge

    def host(
        self,
        make: Callable[[], BoundaryHost],
        *,
        model: Model,
        make_learner: Callable[[Sequence[Fragment], LearnerLife, float], Any],
        judge: Judging | None,
    ) -> BoundaryHost:
        """The host of this rank: rank 0 makes one, and the others follow it."""
        if self.is_leader:
            return LeadHost(make(), self)
        return FollowHost(self, model, make=make_learner, judge=judge)

    def close(self) -> None:
        """Let the others notice that this rank comes no more; by any of them alone."""
        crossing, self._crossing = self._crossing, None
        if crossing is not None:
            crossing.close()
        group, self._group = self._group, None
        if group is not None:
            with suppress(Exception):  # The user may have ended all groups.
                dist.destroy_process_group(group)

    @contextmanager
    def closed_by_error(self) -> Iterator[None]:
        """Close, where an error ends what this rank does."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    # -- what all ranks have done --------------------------------------------------------------------------------------

    def total(self, count: int) -> int:
        """The sum of a number over all ranks."""
        return int(self._sum([count])[0])

    def is_same(self, value: Any) -> bool:
        """Whether all ranks have the same value, by its text."""
        texts = [""] * self.size
        with self._reached():
            dist.all_gather_object(texts, repr(value), group=self._group)
        return len(set(texts)) == 1

    def told(self, make: Callable[[], Any]) -> Any:
        """In all ranks, what `make` returns in rank 0, which may take long. RankError in the others if it raises."""
        with self.closed_by_error():
            if not self.is_leader:
                return self.next()[1]
            value = make()
            self.give("told", value)
            return value

    def count(self, tokens: int, loss: Any) -> tuple[int, Any]:
        """The tokens of all ranks, and the mean of their losses, which is known a boundary later: no device is waited
        for. RankError if another rank has left its loop."""
        before = self._scalar
        now = self._scalar = MeanScalar(loss)
        own = 0.0 if before is None else before.own()
        total, losses, here, to_leave = self._sum([tokens, own, 1, self.is_to_leave])
        self.is_to_leave = to_leave > 0
        if here < self.size:
            raise RankError(_APART)
        if before is not None:
            before.mean = losses / self.size
        return int(total), now

    def part(self) -> None:
        """Leave the loop. RankError if another rank has made a step."""
        if self._sum([0, 0, 0, 0])[2]:
            raise RankError(_APART)

    def _sum(self, numbers: Sequence[float]) -> list[float]:
        sums = torch.tensor(numbers, dtype=torch.float64)
        with self._reached():
            dist.all_reduce(sums, group=self._group)
        return [float(each) for each in sums]

    # -- orders --------------------------------------------------------------------------------------------------------

    def give(self, *order: Any) -> None:
        """Give the others an order; by rank 0."""
        data = pickle.dumps(order)
        frame = torch.zeros(FRAME_BYTES, dtype=torch.uint8)
        content = torch.frombuffer(bytearray(len(data).to_bytes(_LENGTH_BYTES, "big") + data), dtype=torch.uint8)
        frame[: len(content)] = content[:FRAME_BYTES]
        self._broadcast(frame)
        if len(content) > FRAME_BYTES:
            self._broadcast(content[FRAME_BYTES:])

    def next(self) -> tuple[Any, ...]:
        """Rank 0's next order."""
        frame = torch.empty(FRAME_BYTES, dtype=torch.uint8)
        self._broadcast(frame)
        data = frame.numpy().tobytes()
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
        if end > FRAME_BYTES:
            rest = torch.empty(end - FRAME_BYTES, dtype=torch.uint8)
            self._broadcast(rest)
            data += rest.numpy().tobytes()
        order: tuple[Any, ...] = pickle.loads(data[_LENGTH_BYTES:end])  # As of torch's own groups: it is one program.
        return order

    # -- leaves --------------------------------------------------------------------------------------------------------

    def fetch(self, leaf: torch.Tensor, out: torch.Tensor, rows: slice | None = None) -> None:
        """Copy the values of a leaf, or those of some rows, into rank 0's `out`."""
        local = _local(leaf)
        if not isinstance(leaf, DTensor):
            if self.is_leader:
                reach(local.device).read(_rows(local, rows), out)
            return
        for rank, here, there in self._pieces(LeafCut(leaf, rows)):
            if rank == self._rank == 0:
                reach(local.device).read(local[here], out[there])
            elif self.is_leader:
                part = torch.empty(out[there].shape, dtype=leaf.dtype)
                self._receive(part, rank)
                out[there].copy_(part)
            elif rank == self._rank:
                sent = torch.empty(local[here].shape, dtype=local.dtype)
                reach(local.device).read(local[here], sent)
                self._send(sent, 0)

    def store(self, leaf: torch.Tensor, values: torch.Tensor, rows: slice | None = None, *, alpha: float = 0.0) -> None:
        """Replace a leaf, or some rows, by alpha times itself and 1 - alpha times the `values` of rank 0.

        In the others `values` has their shape and dtype.
        """
        local = _local(leaf)
        if not isinstance(leaf, DTensor):
            new = values.contiguous() if self.is_leader else torch.empty(values.shape, dtype=values.dtype)
            self._broadcast(new)
            mix(_rows(local, rows), reach(local.device).arrive(new), alpha)
            return
        for rank, box in enumerate(self._boxes_of(leaf)):
            if (cut := _cut(box, rows)) is None:
                continue
            here, there = cut
            if self.is_leader and rank:
                self._send(values[there], rank)
            elif rank == self._rank:
                new = values[there] if self.is_leader else torch.empty(values[there].shape, dtype=values.dtype)
                if not self.is_leader:
                    self._receive(new, 0)
                mix(local[here], reach(local.device).arrive(new), alpha)

    def gather(self, cuts: Sequence[LeafCut], size: int) -> Any:
        """Values of leaves, or of rows of them, one behind the other, float32[size] to NumPy in rank 0, on their way
        there: nobody waits. None where none of them is a shard."""
        if not any(isinstance(cut.leaf, DTensor) for cut in cuts):
            return None
        parts: list[list[RankPiece]] = [[] for _ in range(self.size)]
        own: list[torch.Tensor] = []
        for cut in cuts:
            for rank, here, there in self._pieces(cut):
                parts[rank].append(RankPiece(cut.where, cut.shape, there))
                if rank == self._rank:
                    own.append(_local(cut.leaf)[here])
        if self._crossing is None:
            self._crossing = PartCrossing(self._rank, WAIT_MAX)
        device = reach(_local(cuts[0].leaf).device)
        captured, at = device.room(sum(each.numel() for each in own)), 0
        for each in own:
            captured[at : at + each.numel()].view(each.shape).copy_(each)
            at += each.numel()
        return self._crossing.gather(size, parts, device.leave(captured, "answer"))

    def _pieces(self, cut: LeafCut) -> Iterator[tuple[int, tuple[slice, ...], tuple[slice, ...]]]:
        """The pieces that make up a cut: whose each is, where it lies there, and where in the cut."""
        if not isinstance(cut.leaf, DTensor):
            yield 0, () if cut.rows is None else (cut.rows,), ()
            return
        boxes = self._boxes_of(cut.leaf)
        for rank, box in enumerate(boxes):
            if box not in boxes[:rank] and (found := _cut(box, cut.rows)) is not None:
                yield rank, *found

    def whole(self, leaf: torch.Tensor, rows: slice | None = None) -> torch.Tensor | None:
        """The values of a leaf, or those of some rows, where they lie, in rank 0; None of a shard."""
        return _rows(_local(leaf), rows) if self.is_leader and not isinstance(leaf, DTensor) else None

    def share(self, array: Any) -> Any:
        """Rank 0's array, in all; in the others `array` has its shape and dtype."""
        array = np.asarray(array)
        content = tensor_of(array) if self.is_leader else torch.empty(array.shape, dtype=tensor_of(array).dtype)
        self._broadcast(content)
        return array if self.is_leader else content.numpy()

    def form(self, value: torch.Tensor) -> torch.Tensor:
        """Zeros of the form of a value, without memory of their own, which lie on the ranks as the value does."""
        zeros = torch.zeros((), dtype=value.dtype, device=value.device)
        if not isinstance(value, DTensor):
            return zeros.expand(value.shape)
        local = zeros.expand(_local(value).shape)
        mesh, placements = value.device_mesh, value.placements
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())

    def size_bytes(self, leaf: torch.Tensor) -> int:
        """The bytes that this rank has of a leaf."""
        return int(_local(leaf).numel()) * int(leaf.element_size())

    def _boxes_of(self, leaf: DTensor) -> list[Box]:
        """What each rank has of a leaf."""
        key = tuple(leaf.shape), leaf.device_mesh, leaf.placements
        if key not in self._boxes:
            boxes: list[Box] = [None] * self.size
            with self._reached():
                dist.all_gather_object(boxes, _box(leaf), group=self._group)
            self._boxes[key] = boxes
        return self._boxes[key]

    def _broadcast(self, content: torch.Tensor) -> None:
        if content.numel():
            data = _bytes(content)
            with self._reached():
                dist.broadcast(data, 0, group=self._group)

    def _send(self, part: torch.Tensor, rank: int) -> None:
        data = _bytes(part.contiguous())
        with self._reached():
            dist.send(data, rank, group=self._group)

    def _receive(self, part: torch.Tensor, rank: int) -> None:
        data = _bytes(part)
        with self._reached():
            dist.recv(data, rank, group=self._group)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankError(f"a rank of this island is gone: {str(error).splitlines()[0]}") from error


_APART: Final = (
    "one rank of this island has left its loop, and another one has made a step: let all ranks decide alike, by "
    "island.is_over, island.progress, or a number of steps"
)


@final
class MeanScalar:
    """A number of each rank; the mean of all, once it is known, and before this rank's own."""

    def __init__(self, value: Any) -> None:
        self._value = reach(value.device).scalar(value.detach()) if isinstance(value, torch.Tensor) else float(value)
        self.mean: float | None = None

    def own(self) -> float:
        """This rank's; it waits for the device that computes it, and for no step after it."""
        return float(np.asarray(self._value))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.own() if self.mean is None else self.mean, dtype)


def fault_of_ranks(module: Any) -> str:
    """Why the ranks of an island cannot exchange the leaves of a module; empty if they can."""
    if any(isinstance(each, FullyShardedDataParallel) for each in module.modules()):
        return "FullyShardedDataParallel, the first version of FSDP"
    for name, leaf in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(leaf, DTensor) and (odd := [each for each in leaf.placements if type(each) not in _CUTS]):
            return f"{name!r} with {odd[0]}"
    return ""


_CUTS: Final = (Shard, Replicate)


def _box(leaf: DTensor) -> Box:
    shape, offsets = compute_local_shape_and_global_offset(leaf.shape, leaf.device_mesh, leaf.placements)
    if 0 in shape:
        return None
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, shape, strict=True))


def _cut(box: Box, rows: slice | None) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """What a box has of some rows of a leaf: where it lies in the box, and where in the rows; None if nothing."""
    if box is None:
        return None
    if rows is None or not box:
        return tuple(slice(0, each.stop - each.start) for each in box), box
    first, rest = box[0], box[1:]
    start, stop = max(first.start, rows.start), min(first.stop, rows.stop)
    if start >= stop:
        return None
    whole = tuple(slice(0, each.stop - each.start) for each in rest)
    here = slice(start - first.start, stop - first.start)
    return (here, *whole), (slice(start - rows.start, stop - rows.start), *rest)


def _local(leaf: torch.Tensor) -> torch.Tensor:
    values = leaf.detach()
    return values.to_local() if isinstance(values, DTensor) else values


def _rows(values: torch.Tensor, rows: slice | None) -> torch.Tensor:
    return values if rows is None else values[rows]


def _bytes(content: torch.Tensor) -> torch.Tensor:
    """The same memory in bytes; of a single value that was expanded, which counts as contiguous, a copy."""
    flat = content.reshape(-1)
    return (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(torch.uint8)


# -- the learner -------------------------------------------------------------------------------------------------------


class RankLearner(Protocol):
    """What a learner has to have in each rank, beside the calls of a `RemoteLearner`."""

    progress: float

    @property
    def device_kind(self) -> str: ...

    @property
    def host_waits(self) -> HostWaits: ...

    def compile(self, batch: Any) -> None: ...

    def frozen(self) -> Digests: ...

    def copy(self) -> Any: ...

    def tree(self, leaves: Any) -> Mapping[str, Any]: ...

    def keep(self, kept: Sequence[Any]) -> None: ...

    def open_step(self, progress: float) -> None: ...

    def record(self, tokens: int, scalars: Mapping[str, Any]) -> None: ...

    def made_tokens(self) -> int: ...

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]: ...


class Judging(Protocol):
    """What an evaluation has to have in each rank."""

    def metrics(self, tensors: Tensors) -> dict[str, float]: ...

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Any]) -> Assembled: ...


@final
class LeadLearner(RemoteLearner):
    """The learner of rank 0, as inner-step and the loop have it: the calls that concern leaves are those of all ranks.

    Local leaves are read one at a time, at one boundary or at several.
    """

    def __init__(self, learner: RankLearner, ranks: Ranks) -> None:
        self._learner, self._ranks = learner, ranks

    def _change(self, name: str, *arguments: Any) -> Any:
        self._ranks.give("call", name, *map(_without_values, arguments))
        return call(self._learner, name, *arguments)

    def local(self) -> Iterable[Any]:
        self._ranks.give("read")
        leaves = iter(call(self._learner, "local"))
        while True:
            self._ranks.give("read on")
            try:
                leaf = next(leaves)
            except StopIteration:
                return
            yield leaf

    def frozen(self) -> Digests:
        """The digests of the frozen leaves."""
        digests: Digests = self._change("frozen")
        return digests

    def adopt_tree(self, parameters: Mapping[str, Any]) -> None:
        self._change("adopt_tree", dict(parameters))

    def copy(self) -> Mapping[str, Any]:
        """A copy of all merged leaves, by path, in NumPy arrays."""
        self._ranks.give("copy")
        return self._learner.tree(self._learner.copy())

    def tree(self, leaves: Mapping[str, Any]) -> Mapping[str, Any]:
        return leaves

    # -- what each rank does for itself --------------------------------------------------------------------------------

    @property
    def device_kind(self) -> str:
        return self._learner.device_kind

    @property
    def host_waits(self) -> HostWaits:
        return self._learner.host_waits

    @property
    def progress(self) -> float:
        """The share of the budget before the step that may be made now."""
        return self._learner.progress

    def compile(self, batch: Any) -> None:
        self._learner.compile(batch)

    def keep(self, kept: Sequence[Any]) -> None:
        """Keep what this rank's loop keeps."""
        self._learner.keep(kept)

    def open_step(self, progress: float) -> None:
        """Let the loops make a step; that they may is the order with which a boundary ends."""
        self._learner.open_step(progress)
        self._ranks.budget_share = progress

    def record(self, tokens: int, scalars: Mapping[str, Any]) -> None:
        """Take tokens of all ranks, and scalars."""
        self._learner.record(tokens, scalars)

    def made_tokens(self) -> int:
        return self._learner.made_tokens()

    def step(self, batch: Any, progress: float) -> Mapping[str, Any]:
        return self._learner.step(batch, progress)


@final
class LeadJudge:
    """An evaluation that the module of all ranks makes together; the scalars are rank 0's (`Evaluating`)."""

    def __init__(self, judge: Judging, ranks: Ranks) -> None:
        self._judge, self._ranks = judge, ranks

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        self._ranks.give("evaluate")
        return self._judge.metrics(tensors)

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Any]) -> Assembled:
        return self._judge.assemble(fragments, values)


class _Absent(NamedTuple):
    """An array of an order's call, whose values are rank 0's."""

    form: ArrayForm


def _without_values(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_without_values(each) for each in argument]
    if isinstance(argument, dict):
        return {name: _without_values(each) for name, each in argument.items()}
    if isinstance(argument, int | float):
        return argument
    return _Absent(ArrayForm(tuple(argument.shape), argument.dtype))


def _with_memory(argument: Any) -> Any:
    """The argument of a call that rank 0 has made, with arrays whose values mean nothing."""
    if isinstance(argument, list):
        return [_with_memory(each) for each in argument]
    if isinstance(argument, dict):
        return {name: _with_memory(each) for name, each in argument.items()}
    return np.empty(*argument.form) if isinstance(argument, _Absent) else argument


# -- the host ----------------------------------------------------------------------------------------------------------


class BoundaryHost(Protocol):
    """A host beside a loop, as the loop drives it."""

    place: IslandSlot
    tokens_most: int
    """Of all ranks, in a step."""
    over_seconds: float
    """For how long a loop may make steps once the run is over."""

    @property
    def is_over(self) -> bool: ...

    @property
    def position(self) -> int: ...

    @property
    def progress(self) -> float: ...

    def begin(self) -> None: ...

    def go_on(self) -> None: ...

    def leave(self) -> None: ...

    def request_leave(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class _Found(NamedTuple):
    """What rank 0 has found at a boundary."""

    is_over: bool
    position: int
    progress: float | None


@final
class LeadHost:
    """The host of rank 0: after each of its boundaries the loops of all ranks go on, with what it has found."""

    def __init__(self, host: BoundaryHost, ranks: Ranks) -> None:
        self._host, self._ranks = host, ranks
        self.place, self.tokens_most, self.over_seconds = host.place, host.tokens_most, host.over_seconds

    @property
    def is_over(self) -> bool:
        return self._host.is_over

    @property
    def position(self) -> int:
        return self._host.position

    @property
    def progress(self) -> float:
        return self._host.progress

    def begin(self) -> None:
        """Join, and wait for the model."""
        with self._ranks.closed_by_error():
            self._ranks.give("join", self.place, self.over_seconds)
            self._host.begin()
            self._let_go_on()

    def go_on(self) -> None:
        """End the boundary of the step that was made, and do what precedes the next."""
        if self._ranks.is_to_leave:
            self._host.request_leave()
        with self._ranks.closed_by_error():
            self._host.go_on()
            self._let_go_on()

    def leave(self) -> None:
        """Give what is left to give, and end; in all ranks."""
        with self._ranks.closed_by_error():
            try:
                self._ranks.part()
            except RankError as error:
                self._host.fail(error)
                raise
            self._host.leave()
            self._let_go_on()
        self._ranks.close()

    def request_leave(self) -> None:
        """Have the loops leave at their next boundary."""
        self._host.request_leave()

    def fail(self, error: BaseException) -> None:
        """End because of an exception of this rank's loop."""
        self._host.fail(error)
        self._ranks.close()

    def _let_go_on(self) -> None:
        if self._host.is_over:
            self._ranks.budget_share = self._host.progress
        let_go_on(self._ranks, is_over=self._host.is_over, position=self._host.position)


def let_go_on(ranks: Ranks, *, is_over: bool = False, position: int = 0) -> None:
    """Let the loops of the other ranks go on; by rank 0."""
    ranks.give("go on", _Found(is_over, position, ranks.budget_share))


@final
class FollowHost:
    """What another rank has for a host: it makes the calls of rank 0's learner until the loop goes on.

    `make` makes this rank's learner, as rank 0 makes its own; `judge` evaluates with it.
    """

    def __init__(
        self,
        ranks: Ranks,
        model: Model,
        *,
        make: Callable[[Sequence[Fragment], LearnerLife, float], Any],
        judge: Judging | None = None,
    ) -> None:
        self._ranks, self._model, self._make, self._judge = ranks, model, make, judge
        self._reading: Iterator[Any] = iter(())
        self._found = _Found(is_over=False, position=0, progress=None)
        self.place = IslandSlot(0, 1, 0)
        """As rank 0 has told it."""
        self.over_seconds = math.inf  # As rank 0 tells it, too.
        self.tokens_most = sys.maxsize  # Rank 0 looks at those of all.

    @property
    def is_over(self) -> bool:
        return self._found.is_over

    @property
    def position(self) -> int:
        return self._found.position

    @property
    def progress(self) -> float:
        return self._found.progress or 0.0

    def begin(self) -> None:
        """Follow rank 0 until this loop may go on."""
        with self._ranks.closed_by_error():
            while self._follow(self._ranks.next()):
                pass

    def go_on(self) -> None:
        """Follow rank 0 through a boundary."""
        self.begin()

    def leave(self) -> None:
        """Follow rank 0 to its end."""
        with self._ranks.closed_by_error():
            self._ranks.part()
        self.begin()
        self._ranks.close()

    def request_leave(self) -> None:
        """Let the island leave: rank 0 hears of it at the next boundary."""
        self._ranks.is_to_leave = True

    def fail(self, error: BaseException) -> None:
        """End because of an exception of this rank's loop: rank 0 hears that this rank is gone."""
        self._ranks.close()

    def _follow(self, order: tuple[Any, ...]) -> bool:
        """Make a call of rank 0's; False if the loop is to go on."""
        match order:
            case "join", IslandSlot() as place, float() as over_seconds:
                self.place, self.over_seconds = place, over_seconds
            case "make", fragments, life, alpha:
                self._make(fragments, life, alpha)
            case "call", name, *arguments:
                call(self._led(), name, *map(_with_memory, arguments))
            case ("copy",):
                led = self._led()
                led.tree(led.copy())
            case ("read",):
                self._reading = iter(call(self._led(), "local"))
            case ("read on",):
                next(self._reading, None)
            case ("evaluate",):
                assert self._judge is not None
                self._judge.metrics({path: np.empty(*form_of(leaf)) for path, leaf in self._model.merged.items()})
            case "go on", _Found() as found:
                self._found = found
                if found.progress is not None:
                    self._led().open_step(found.progress)
                return False
            case _:
                raise ValueError(f"no order of rank 0: {order[:1]!r}")
        return True

    def _led(self) -> RankLearner:
        assert self._ranks.led is not None
        return self._ranks.led
