"""The loops of the table in PyTorch: each is a form that people give to a loop, beside the plain one.

    torch_rows.py NAMES SEED STEPS [alone]

Several are trained side by side in one process: a module of each, and a step of each before `island.step`.
"""

from __future__ import annotations

import copy
import io
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.torch_tasks.loops.ground import (
    CONTEXT,
    INNER,
    SAMPLES,
    SYMBOLS,
    WIDTH,
    Ground,
    Row,
    batches,
    draw,
    held_out,
    main,
    merge_rules,
)

ROWS: dict[str, Row] = {}
RATE = 1e-2


def row(title: str, group: str = "") -> Callable[[Any], Any]:
    """Add a row to the table."""

    def add(make: Any) -> Any:
        ROWS[re.sub(r"(?<!^)(?=[A-Z])", "_", make.__name__).lower()] = Row(title, make, group)
        return make

    return add


class Net(nn.Module):
    """Symbols -> logits."""

    def __init__(self, *, norm: Any = None, dropout: float = 0.0, is_sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH, sparse=is_sparse)
        self.body = nn.Linear(CONTEXT * WIDTH, INNER)
        self.norm = nn.Identity() if norm is None else norm
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(INNER, SYMBOLS)

    def inner(self, x: torch.Tensor) -> Any:
        return self.dropout(F.gelu(self.norm(self.body(self.embedding(x).flatten(1)))))

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.inner(x))


def adamw(model: Any, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": RATE, **settings})


def loss_on(model: Any, x: Any, y: Any) -> Any:
    return F.cross_entropy(model(x).float(), y)


def held_out_loss(model: Any) -> float:
    """The mean loss on the held-out samples; the module is in its mode again behind that."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss = float(loss_on(model, *map(torch.from_numpy, held_out())))
    model.train(was_training)
    return loss


class Loop:
    """The loop of a row: what is passed to the island, its data, and the step that it makes between two calls.

    This is the plain one.
    """

    keep: tuple[Any, ...] = ()
    merge: ClassVar[dict[str, str]] = {"**": "rda"}

    def __init__(self, ground: Ground, model: Any = None, optimizer: Any = None) -> None:
        self.ground = ground
        self.model = Net() if model is None else model
        self.optimizer = adamw(self.model) if optimizer is None else optimizer

    def data(self) -> Iterator[tuple[Any, Any]]:
        """Batches; called inside of the `with`."""
        for x, y in batches(self.ground.data_seed):
            yield torch.from_numpy(x), torch.from_numpy(y)

    def step(self, x: Any, y: Any) -> Any:
        """Train on a batch; the loss."""
        loss = loss_on(self.model, x, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def end(self) -> float:
        """The held-out loss of what its user keeps."""
        return held_out_loss(self.model)


def train(ground: Ground, names: list[str]) -> None:
    """The loop around the steps of these rows."""
    loops = dict[str, Loop]()
    for name in names:
        torch.manual_seed(ground.seed)  # Each begins as it would alone.
        loops[name] = ROWS[name].make(ground)
    every = list(loops.values())
    if len(every) == 1:
        model, optimizers = every[0].model, every[0].optimizer
    else:
        model = {name: _module(loop.model) for name, loop in loops.items()}
        optimizers = list(itertools.chain.from_iterable(_several(loop.optimizer) for loop in every))
    with ground.open(
        model, optimizers, merge=merge_rules({name: loop.merge for name, loop in loops.items()})
    ) as island:
        ground.begins()
        if kept := [each for loop in every for each in loop.keep]:
            island.keep(*kept)
        data = [loop.data() for loop in every]
        for drawn in island(zip(*data, strict=True)):
            losses = [
                float(torch.as_tensor(loop.step(x, y)).detach()) for loop, (x, y) in zip(every, drawn, strict=True)
            ]
            island.step(sum(losses) / len(losses), tokens=sum(x.numel() for x, _ in drawn))
            ground.pace()
    ground.end({name: loop.end() for name, loop in loops.items()})


def _module(model: Any) -> Any:
    return nn.ModuleDict(model) if isinstance(model, dict) else model


def _several(optimizer: Any) -> list[Any]:
    return list(optimizer) if isinstance(optimizer, list) else [optimizer]


# -- the plain loop, compiled and in other precisions ------------------------------------------------------------------


@row("the plain loop")
class Plain(Loop):
    pass


@row("`torch.compile` of the step", "compiled")
class CompiledStep(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._loss = torch.compile(lambda x, y: loss_on(self.model, x, y), dynamic=False)

    def step(self, x: Any, y: Any) -> Any:
        loss = self._loss(x, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


@row("`torch.compile` of the module", "compiled")
class CompiledModule(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, torch.compile(Net()))


@row("autocast, bfloat16")
class AutocastBfloat16(Loop):
    def step(self, x: Any, y: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_on(self.model, x, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


@row("autocast, float16, with `GradScaler`")
class AutocastFloat16(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=20)
        self.keep = (self.scaler,)

    def step(self, x: Any, y: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_on(self.model, x, y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()


@row("a model in bfloat16")
class InBfloat16(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, Net().bfloat16())


@row("a model in float64")
class InFloat64(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, Net().double())


# -- data --------------------------------------------------------------------------------------------------------------


class Samples(Dataset[Any]):
    """Samples of the task, as many as an island sees."""

    def __init__(self, seed: int, count: int) -> None:
        import numpy as np

        self._x, self._y = draw(np.random.default_rng(seed), count)

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self._x[number], self._y[number]


class Stream(IterableDataset[Any]):
    """Batches of the task, which workers share."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        worker = torch.utils.data.get_worker_info()
        for x, y in batches(self._seed + worker.id):
            yield torch.from_numpy(x), torch.from_numpy(y)


class Workers(Loop):
    """A loader with two workers, over three epochs and more."""

    settings: ClassVar[dict[str, Any]] = {}

    def data(self) -> Iterator[tuple[Any, Any]]:
        seed, count = self.ground.data_seed, SAMPLES * max(1, self.ground.steps // 3)
        shuffled = torch.Generator().manual_seed(seed)
        samples = Samples(seed, count)
        loader = DataLoader(samples, SAMPLES, shuffle=True, generator=shuffled, num_workers=2, **self.settings)
        while True:
            yield from loader


@row("`DataLoader` with workers by fork", "workers")
class ForkedWorkers(Workers):
    settings: ClassVar[dict[str, Any]] = {"multiprocessing_context": "fork"}


@row("`DataLoader` with workers by spawn", "workers")
class SpawnedWorkers(Workers):
    settings: ClassVar[dict[str, Any]] = {"multiprocessing_context": "spawn", "persistent_workers": True}


@row("`DataLoader` with persistent workers", "workers")
class PersistentWorkers(Workers):
    settings: ClassVar[dict[str, Any]] = {"multiprocessing_context": "fork", "persistent_workers": True}


@row("`IterableDataset` that workers share", "workers")
class Iterable(Loop):
    def data(self) -> Iterator[tuple[Any, Any]]:
        yield from DataLoader(Stream(self.ground.data_seed), None, num_workers=2, multiprocessing_context="fork")


@row("`DistributedSampler` by `island.slot` and `island.slots`")
class Divided(Loop):
    def data(self) -> Iterator[tuple[Any, Any]]:
        island, samples = self.ground.island, Samples(self.ground.seed, SAMPLES * self.ground.steps)
        sampler = DistributedSampler(samples, island.slots, island.slot, seed=self.ground.seed)
        for epoch in itertools.count(island.position):
            sampler.set_epoch(epoch)
            yield from DataLoader(samples, SAMPLES, sampler=sampler, drop_last=True)


# -- modules -----------------------------------------------------------------------------------------------------------


@row("tied weights")
class Tied(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        model.head = nn.Sequential(nn.Linear(INNER, WIDTH), nn.Linear(WIDTH, SYMBOLS))
        model.head[1].weight = model.embedding.weight
        super().__init__(ground, model)


@row("BatchNorm")
class BatchNorm(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, Net(norm=nn.BatchNorm1d(INNER)))


class Buffered(nn.Module):
    """Divides by a running scale, which is not saved, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Any) -> Any:
        if self.training:
            self.scale.lerp_(x.detach().std(), 0.05)
            self.calls += 1
        return x / self.scale


@row("buffers with `persistent=False`")
class UnsavedBuffers(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, Net(norm=Buffered()))


class Checkpointed(Net):
    """Computes its inner part again in the backward pass."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(checkpoint(self.inner, x, use_reentrant=False))


@row("gradient checkpointing, with dropout")
class Checkpointing(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, Checkpointed(dropout=0.1))


@row("dropout")
class Dropout(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, Net(dropout=0.2))


@row("spectral norm")
class SpectralNorm(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        parametrizations.spectral_norm(model.body)
        super().__init__(ground, model)


@row("weight norm")
class WeightNorm(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        parametrizations.weight_norm(model.body)
        super().__init__(ground, model)


@row("orthogonal parametrization")
class Orthogonal(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        parametrizations.orthogonal(model.body, orthogonal_map="matrix_exp")
        super().__init__(ground, model)


@row("pruning by masks")
class Pruned(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        prune.l1_unstructured(model.body, "weight", 0.3)
        super().__init__(ground, model)


class Image(nn.Module):
    """A convolution of the symbols as an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.body = nn.Conv2d(WIDTH, INNER, 2)
        self.head = nn.Linear(INNER, SYMBOLS)

    def forward(self, x: torch.Tensor) -> Any:
        image = self.embedding(x).transpose(1, 2).reshape(len(x), WIDTH, 2, 2).to(memory_format=torch.channels_last)
        return self.head(F.gelu(self.body(image)).flatten(1))


@row("`channels_last` leaves")
class ChannelsLast(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Image().to(memory_format=torch.channels_last)
        assert not model.body.weight.is_contiguous()
        super().__init__(ground, model)


@row("strided leaves")
class Strided(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        model.body.weight = nn.Parameter(model.body.weight.detach().T.contiguous().T)
        assert not model.body.weight.is_contiguous()
        super().__init__(ground, model)


class RecurrentNet(nn.Module):
    """A recurrent layer over the symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.body = nn.LSTM(WIDTH, INNER, batch_first=True)
        self.head = nn.Linear(2 * INNER, SYMBOLS)

    def forward(self, x: torch.Tensor) -> Any:
        every, _ = self.body(self.embedding(x))
        return self.head(torch.cat((every[:, 0], every[:, -1]), 1))


@row("`LSTM`")
class Recurrent(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, RecurrentNet())


@row("a frozen base and a trained head")
class FrozenBase(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        model.embedding.requires_grad_(False)
        super().__init__(ground, model, torch.optim.AdamW([*model.body.parameters(), *model.head.parameters()], RATE))


class Adapted(nn.Module):
    """A frozen linear layer beside the product of two small matrices."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(8, base.in_features) / 8)
        self.b = nn.Parameter(torch.zeros(base.out_features, 8))

    def forward(self, x: Any) -> Any:
        return self.base(x) + x @ self.a.T @ self.b.T


@row("adapters beside frozen weights")
class Adapters(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        model.body = Adapted(model.body)
        super().__init__(ground, model, adamw(model))


@row("two modules and two optimizers")
class TwoModules(Loop):
    def __init__(self, ground: Ground) -> None:
        net = Net()
        head, net.head = net.head, nn.Identity()
        self._whole = nn.Sequential(net, head)
        super().__init__(ground, {"body": net, "head": head}, [adamw(net), torch.optim.Adam(head.parameters(), RATE)])

    def step(self, x: Any, y: Any) -> Any:
        loss = loss_on(self._whole, x, y)
        loss.backward()
        for each in self.optimizer:
            each.step()
            each.zero_grad()
        return loss

    def end(self) -> float:
        return held_out_loss(self._whole)


# -- optimizers --------------------------------------------------------------------------------------------------------


@row("groups added before the `with`")
class AddedGroups(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        optimizer = torch.optim.AdamW(model.head.parameters(), lr=RATE)
        optimizer.add_param_group({"params": [*model.embedding.parameters(), *model.body.parameters()], "lr": RATE / 2})
        super().__init__(ground, model, optimizer)


@row("groups with and without weight decay")
class Decayed(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        parts = [[each for each in model.parameters() if (each.ndim > 1) == is_matrix] for is_matrix in (True, False)]
        groups = [{"params": part, "weight_decay": decay} for part, decay in zip(parts, (0.1, 0.0), strict=True)]
        super().__init__(ground, model, torch.optim.AdamW(groups, lr=RATE))


@row("`fused=True`")
class Fused(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        super().__init__(ground, model, adamw(model, fused=True))


@row("Muon beside AdamW")
class Muon(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        matrices = [model.body.weight, model.head.weight]
        others = [each for each in model.parameters() if not any(each is one for one in matrices)]
        muon = torch.optim.Muon(matrices, lr=RATE, weight_decay=0.0)
        super().__init__(ground, model, [muon, torch.optim.AdamW(others, lr=RATE)])

    def step(self, x: Any, y: Any) -> Any:
        loss = loss_on(self.model, x, y)
        loss.backward()
        for each in self.optimizer:
            each.step()
            each.zero_grad()
        return loss


@row("sparse gradients of an embedding, by `SparseAdam`")
class Sparse(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net(is_sparse=True)
        others = [*model.body.parameters(), *model.head.parameters()]
        sparse = torch.optim.SparseAdam(list(model.embedding.parameters()), lr=RATE)
        super().__init__(ground, model, [sparse, torch.optim.AdamW(others, lr=RATE)])

    step = Muon.step


class ScheduleFreeSgd(torch.optim.Optimizer):
    """Schedule-free SGD (arXiv 2405.15682): parameters are y in training, and x after `eval`."""

    def __init__(self, parameters: Any, lr: float, momentum: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "k": 0, "in_training": True})

    def _set(self, *, in_training: bool) -> None:
        for group in self.param_groups:
            if group["in_training"] != in_training:
                weight = 1 - group["momentum"] if in_training else 1 - 1 / group["momentum"]
                for each in group["params"]:
                    if "z" in self.state[each]:
                        each.data.lerp_(self.state[each]["z"], weight)
                group["in_training"] = in_training

    def train(self) -> None:
        self._set(in_training=True)

    def eval(self) -> None:
        self._set(in_training=False)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            share = 1 / group["k"]
            for each in group["params"]:
                if each.grad is None:
                    continue
                z = self.state[each].setdefault("z", each.detach().clone())
                each.data.lerp_(z, share)
                each.data.add_(each.grad, alpha=group["lr"] * (group["momentum"] * (1 - share) - 1))
                z.sub_(each.grad, alpha=group["lr"])


@row("a schedule-free optimizer")
class ScheduleFree(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        super().__init__(ground, model, ScheduleFreeSgd(model.parameters(), lr=1.0))

    def end(self) -> float:
        self.optimizer.eval()
        return held_out_loss(self.model)


@row("an optimizer for each parameter, which steps in the backward pass")
class InBackward(Loop):
    def __init__(self, ground: Ground) -> None:
        model = Net()
        self._of = {each: torch.optim.AdamW([each], lr=RATE) for each in model.parameters()}
        for each in model.parameters():
            each.register_post_accumulate_grad_hook(self._on_gradient)
        super().__init__(ground, model, list(self._of.values()))

    def _on_gradient(self, parameter: Any) -> None:
        self._of[parameter].step()
        self._of[parameter].zero_grad()

    def step(self, x: Any, y: Any) -> Any:
        loss = loss_on(self.model, x, y)
        loss.backward()
        return loss


@row("`optimizer.step(closure)`")
class Closure(Loop):
    def step(self, x: Any, y: Any) -> Any:
        def compute() -> Any:
            self.optimizer.zero_grad()
            loss = loss_on(self.model, x, y)
            loss.backward()
            return loss

        return self.optimizer.step(compute)


@row("sharpness-aware minimization (two passes, weights moved and put back)")
class TwoPasses(Loop):
    def step(self, x: Any, y: Any) -> Any:
        loss = loss_on(self.model, x, y)
        loss.backward()
        parameters = list(self.model.parameters())
        norm = torch.stack([each.grad.norm() for each in parameters]).norm()
        moved = [0.02 / norm * each.grad for each in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, moved)
        self.optimizer.zero_grad()
        loss_on(self.model, x, y).backward()
        with torch.no_grad():
            torch._foreach_sub_(parameters, moved)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@row("gradients by `torch.func`")
class Functional(Loop):
    def step(self, x: Any, y: Any) -> Any:
        def compute(parameters: Any) -> Any:
            return F.cross_entropy(torch.func.functional_call(self.model, parameters, (x,)), y)

        named = dict(self.model.named_parameters())
        gradients, loss = torch.func.grad_and_value(compute)({name: each.detach() for name, each in named.items()})
        for name, each in named.items():
            each.grad = gradients[name]
        self.optimizer.step()
        return loss


# -- schedules ---------------------------------------------------------------------------------------------------------


@row("`ReduceLROnPlateau`, by an evaluation in the midst")
class Plateau(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=1, threshold=0.01)
        self.keep = (self.scheduler,)

    def step(self, x: Any, y: Any) -> Any:
        loss = super().step(x, y)
        if self.ground.island.position % 50 == 49:
            self.scheduler.step(held_out_loss(self.model))
        return loss


@row("`OneCycleLR`, by `island.progress`")
class OneCycle(Loop):
    total = 1000

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        cycle = torch.optim.lr_scheduler.OneCycleLR
        self.scheduler = cycle(self.optimizer, max_lr=2 * RATE, total_steps=self.total)
        self.keep = (self.scheduler,)

    def step(self, x: Any, y: Any) -> Any:
        loss = super().step(x, y)
        while self.scheduler.last_epoch < int(self.ground.island.progress * (self.total - 1)):
            self.scheduler.step()
        return loss


@row("warm-up and cosine, by `island.progress`")
class ByProgress(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def step(self, x: Any, y: Any) -> Any:
        progress = torch.tensor(self.ground.island.progress)
        share = min(1.0, float(progress) * 20 + 0.05) * float(1 + torch.cos(torch.pi * progress)) / 2
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * share
        return super().step(x, y)


# -- steps -------------------------------------------------------------------------------------------------------------


@row("gradient accumulation with an uneven last part")
class Accumulation(Loop):
    def step(self, x: Any, y: Any) -> Any:
        total = 0.0
        for part, labels in zip(x.split(24), y.split(24), strict=True):
            loss = loss_on(self.model, part, labels) * len(part) / len(x)
            loss.backward()
            total += float(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


@row("gradient clipping")
class Clipping(Loop):
    def step(self, x: Any, y: Any) -> Any:
        loss = loss_on(self.model, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


@row("`zero_grad(set_to_none=False)`")
class Zeroed(Loop):
    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad(set_to_none=False)
        loss = loss_on(self.model, x, y)
        loss.backward()
        self.optimizer.step()
        return loss


@row("NaN batches", "not finite")
class NotFinite(Loop):
    def step(self, x: Any, y: Any) -> Any:
        island = self.ground.island
        if island.slot == 1 and island.position % 40 == 20:
            loss = loss_on(self.model, x, y) * float("nan")  # The weights, too, are NaN behind this step.
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss
        return super().step(x, y)


@row("an evaluation under `inference_mode` in the midst")
class Inference(Loop):
    def step(self, x: Any, y: Any) -> Any:
        if self.ground.island.position % 20 == 0:
            self.model.eval()
            with torch.inference_mode():
                loss_on(self.model, x, y)
            self.model.train()
        return super().step(x, y)


@row("hooks of modules, gradients and the optimizer")
class Hooks(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.norms = list[float]()
        self.model.body.register_forward_hook(lambda module, inputs, output: output.clamp(-20, 20))
        self.model.body.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        self.optimizer.register_step_post_hook(lambda *_: self.norms.append(self.model.body.weight.norm().item()))


@row("a deep copy of the model, of the best so far")
class BestCopy(Loop):
    best: Any = None
    least = float("inf")

    def step(self, x: Any, y: Any) -> Any:
        if self.ground.island.position % 25 == 0 and (loss := held_out_loss(self.model)) < self.least:
            self.best, self.least = copy.deepcopy(self.model), loss
        return super().step(x, y)

    def end(self) -> float:
        assert held_out_loss(self.best) == self.least
        return super().end()


@row("EMA copies (`AveragedModel`)")
class Averaged(Loop):
    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.95)
        self.ema = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=average)
        self.keep = (self.ema,)

    def step(self, x: Any, y: Any) -> Any:
        loss = super().step(x, y)
        self.ema.update_parameters(self.model)
        return loss

    def end(self) -> float:
        return held_out_loss(self.ema)


@row("checkpoints of `state_dict` in the loop")
class Checkpoints(Loop):
    def step(self, x: Any, y: Any) -> Any:
        loss = super().step(x, y)
        if self.ground.island.slot == 0 and self.ground.island.position % 25 == 0:
            self.file = io.BytesIO()
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, self.file)
        return loss


@row("tokens that differ from step to step (masked labels)")
class Masked(Loop):
    def data(self) -> Iterator[tuple[Any, Any]]:
        drawn = torch.Generator().manual_seed(self.ground.data_seed)
        for x, y in super().data():
            count = int(torch.randint(SAMPLES // 2, SAMPLES + 1, (), generator=drawn))
            yield x[:count], y[:count]


if __name__ == "__main__":
    main(train)
