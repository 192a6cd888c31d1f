"""A Stream out of something like a torch DataLoader, of which only the names are used."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.batches import LoaderStream
from isthmus.ops.data.corpus import DataError


class Tensor:
    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)

    def numpy(self) -> Any:
        return self.value


class Generator:
    def __init__(self) -> None:
        self.rng = random.Random()

    def manual_seed(self, seed: int) -> None:
        self.rng.seed(seed)


class RandomSampler:
    """Named as torch's."""


class Loader:
    """Five batches an epoch, in an order that its generator draws."""

    def __init__(self, *, generator: Any = None, sampler: Any = None, count: int = 5) -> None:
        self.generator, self.sampler, self.count = generator, sampler, count

    def __iter__(self) -> Iterator[Any]:
        order = list(range(self.count))
        if self.generator is not None:
            self.generator.rng.shuffle(order)
        return ({"x": Tensor([number]), "y": [Tensor(number), 2.0]} for number in order)


class Counting(Loader):
    """One that keeps its own state, as torchdata's StatefulDataLoader does."""

    def __init__(self) -> None:
        super().__init__()
        self.at = self.from_ = 0

    def __iter__(self) -> Iterator[Any]:
        begin, self.from_ = self.from_, 0
        for number in range(begin, self.count):
            self.at = number + 1
            yield {"x": Tensor([number])}

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.from_ = state["at"]


def numbers(stream: LoaderStream, count: int) -> list[int]:
    return [int(next(stream)["x"][0]) for _ in range(count)]


def test_batches_are_numpy_arrays_epoch_after_epoch() -> None:
    stream = LoaderStream(Loader())
    batch = next(stream)
    assert isinstance(batch["x"], np.ndarray)
    assert isinstance(batch["y"][1], np.ndarray)
    assert numbers(stream, 9) == [1, 2, 3, 4, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("taken", [0, 3, 5, 7, 12])
def test_another_one_goes_on_from_a_state(taken: int) -> None:
    for make in (lambda: Loader(), lambda: Loader(generator=Generator(), sampler=RandomSampler()), Counting):
        stream = LoaderStream(make(), seed=3)
        numbers(stream, taken)
        state = stream.get_state()
        expected = numbers(stream, 11)
        other = LoaderStream(make(), seed=3)
        other.set_state(state)
        assert numbers(other, 11) == expected


class Sized:
    """A loader of 24 samples, as torch's says how many a batch has."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        return iter([{"x": np.arange(at, at + self.batch_size)} for at in range(0, 24, self.batch_size)])


@pytest.mark.parametrize(
    ("was", "now", "taken", "then"),
    [(2, 4, 4, 8), (2, 4, 5, 8), (4, 2, 3, 12), (2, 4, 14, 4), (4, 4, 3, 12)],  # Of half a batch nothing is left out.
)
def test_batches_of_another_size_go_on_at_the_same_sample(was: int, now: int, taken: int, then: int) -> None:
    stream, other = LoaderStream(Sized(was)), LoaderStream(Sized(now))
    numbers(stream, taken)
    other.set_state(stream.get_state())
    assert numbers(other, 2) == [then, then + now]
    without = {name: value for name, value in stream.get_state().items() if name != "size"}
    earlier = LoaderStream(Sized(was))
    earlier.set_state(without)
    assert numbers(earlier, 1) == numbers(stream, 1)


def test_a_function_of_the_epoch_gives_batches_that_are_read_once() -> None:
    def epoch(number: int) -> Iterator[Any]:
        return iter([{"x": np.array([10 * number + each])} for each in range(4)])

    stream = LoaderStream(epoch)
    assert numbers(stream, 6) == [0, 1, 2, 3, 10, 11]
    state = stream.get_state()
    other = LoaderStream(epoch)
    assert numbers(other, 2) == [0, 1]  # It may have gone on before.
    other.set_state(state)
    assert numbers(other, 4) == numbers(stream, 4) == [12, 13, 20, 21]


def test_a_loader_of_an_epoch_may_keep_its_own_state() -> None:
    stream, other = LoaderStream(lambda number: Counting()), LoaderStream(lambda number: Counting())
    numbers(stream, 7)
    other.set_state(stream.get_state())
    assert numbers(other, 4) == numbers(stream, 4) == [2, 3, 4, 0]


def test_a_loader_that_asks_for_the_number_of_the_epoch_gets_it() -> None:
    class Ordered(Loader):
        def set_epoch(self, epoch: int) -> None:
            epochs.append(epoch)

    epochs: list[int] = []
    numbers(LoaderStream(Ordered()), 11)
    assert epochs == [0, 1, 2]


def test_epochs_are_shuffled_in_an_order_of_their_own_that_follows_from_the_seed() -> None:
    def made(seed: int) -> list[int]:
        return numbers(LoaderStream(Loader(generator=Generator(), count=50), seed=seed), 100)

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert made(1)[:50] != made(1)[50:]


def test_the_number_of_the_epoch_reaches_a_sampler_that_asks_for_it() -> None:
    class Sampler:
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    sampler = Sampler()
    numbers(LoaderStream(Loader(sampler=sampler)), 11)
    assert sampler.epochs == [0, 1, 2]


def test_what_cannot_be_repeated_is_refused() -> None:
    with pytest.raises(DataError, match=r"again and again, found a generator.*\n.*not iter\(loader\)"):
        LoaderStream(iter(Loader()))
    with pytest.raises(DataError, match="shuffle=True without a generator"):
        LoaderStream(Loader(sampler=RandomSampler()))
    with pytest.raises(DataError, match="batches in an epoch, found none"):
        next(LoaderStream(Loader(count=0)))
