"""Learners of islands of two ranks, for the suite of learners: the test is rank 0, and a process of this is rank 1.

Several learners are there at a time, each with a group of its own; rank 0 says over a pipe whose turn it is.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.island import torch_device
from isthmus.ops.island.life import LearnerLife
from isthmus.ops.island.torch_device import Queued
from isthmus.ops.island.torch_loop import LoopLearner
from isthmus.ops.island.torch_model import Model, OptimizerState
from isthmus.ops.island.torch_ranks import FollowHost, Ranks, let_go_on
from tests.patience import PATIENCE
from tests.torch_tasks.torch_models import Net, squares

RULES = (("**", "rda"),)
TOKENS = 8


class PromptDriver:
    """A device that is apart, and has done all that it is asked when a call returns (`QueueDriver`)."""

    def queue(self) -> Any:
        return None

    computing = queue

    def on(self, queue: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, queue: Any) -> Any:
        return None

    def order(self, queue: Any, mark: Any) -> None:
        pass

    def is_reached(self, mark: Any) -> bool:
        return True

    def wait(self, mark: Any) -> None:
        pass

    def keep(self, tensor: torch.Tensor, queue: Any) -> None:
        pass

    def room(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    pinned = room

    def now(self) -> int:
        return 0


def be_apart() -> None:
    """Have this process reach its CPU as a device that is apart."""
    torch_device._REACHED[torch.device("cpu")] = Queued(PromptDriver())


class RankLoop:
    """One rank's module, optimizer and step; `way` is 'ddp' or 'fsdp'."""

    def __init__(self, way: str, life: LearnerLife) -> None:
        torch.manual_seed(life.seed)
        module = Net()
        self.wrapped: Any = module
        if way == "fsdp":
            fully_shard(module.last)
            fully_shard(module)
        else:
            self.wrapped = torch.nn.parallel.DistributedDataParallel(module)
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        self.ranks = Ranks(self.wrapped)
        self.model = Model(self.wrapped, RULES, torch.device("cpu"), self.ranks)
        self.moments = OptimizerState(self.optimizer, self.model)

    def learner(self, fragments: Sequence[Fragment], life: LearnerLife, alpha: float) -> Any:
        learner = LoopLearner(self.model, self.moments, fragments, life=life, alpha=alpha)
        return self.ranks.learner(learner, fragments, life, alpha)

    def step(self, arrays: Any) -> tuple[int, Any]:
        """The tokens of all ranks, and their loss."""
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        loss = squares(self.wrapped, tensors)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ranks.settle()
        return self.ranks.count(TOKENS, loss)


def follow(connection: Any, store: str) -> None:
    """Rank 1: do with the learner of a number what is said."""
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=1, world_size=2)
    torch.set_num_threads(1)
    loops: dict[int, tuple[RankLoop, FollowHost]] = {}
    while True:
        match connection.recv():
            case ("apart",):
                be_apart()
            case "make", number, way, life:
                loop = RankLoop(way, life)
                loops[number] = loop, FollowHost(loop.ranks, loop.model, make=loop.learner)
                loops[number][1].begin()
            case "follow", number:
                loops[number][1].begin()
            case "step", number, arrays:
                loops[number][0].step(arrays)


class Peer:
    """Rank 1, as rank 0 has it."""

    def __init__(self, folder: Path, *, is_apart: bool = False) -> None:
        """`is_apart`: both reach their CPUs as devices that are."""
        store = str(folder / "store")
        here, there = multiprocessing.Pipe()
        self._say = here.send
        self._process = multiprocessing.get_context("spawn").Process(target=follow, args=(there, store), daemon=True)
        self._process.start()
        self._patience = threading.Timer(PATIENCE, self._process.kill)  # Rank 0 would wait for ever.
        self._patience.daemon = True
        self._patience.start()
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=0, world_size=2)
        self._count = 0
        self._reached = dict(torch_device._REACHED)
        if is_apart:
            self._say(("apart",))
            be_apart()

    def close(self) -> None:
        torch_device._REACHED.clear()
        torch_device._REACHED.update(self._reached)
        self._patience.cancel()
        self._process.kill()
        self._process.join()
        dist.destroy_process_group()
        torch.set_num_threads(self._threads)

    def learner(self, way: str, fragments: Sequence[Fragment], life: LearnerLife, alpha: float) -> RankedLearner:
        self._count += 1
        self._say(("make", self._count, way, life))
        return RankedLearner(self, self._count, RankLoop(way, life), (fragments, life, alpha))

    def say(self, *what: Any) -> None:
        self._say(what)


class RankedLearner:
    """A learner, with the loops of both ranks that make its steps: it is called as any other."""

    def __init__(self, peer: Peer, number: int, loop: RankLoop, made_of: Any) -> None:
        self._peer, self._number, self.loop = peer, number, loop
        self.learner = loop.learner(*made_of)
        let_go_on(loop.ranks)

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any, **keywords: Any) -> Any:
            call = getattr(self.learner, name)
            self._peer.say("follow", self._number)
            try:
                result = call(*arguments, **keywords)
                return list(result) if name == "local" else result
            finally:
                let_go_on(self.loop.ranks)

        return called

    def step(self, arrays: Any, progress: float) -> Mapping[str, Any]:
        self.learner.open_step(progress)
        self._peer.say("step", self._number, arrays)
        tokens, loss = self.loop.step(arrays)
        self.learner.record(tokens, {"loss": loss})
        assert self.learner.made_tokens() == 2 * TOKENS
        scalars: Mapping[str, Any] = self.learner.step(None, progress)
        return scalars
