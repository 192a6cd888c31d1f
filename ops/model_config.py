"""The shape of the shipped transformer: its configuration, and the names, shapes and initial values of its tensors.

No framework is imported here: what reads folders and requests needs shapes alone. `transformer` computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Routing:
    """`experts` of which each token is sent to `chosen`; ValueError unless 1 <= chosen <= experts.

    `slack` is an expert's capacity as a multiple of its even share of a group; `balance` the weight of the balance in
    the loss.
    """

    experts: int
    chosen: int = 2
    slack: float = 1.25
    balance: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.chosen <= self.experts:
            raise ValueError(f"sending each token to {self.chosen} of {self.experts} experts")

    def capacity(self, length: int) -> int:
        """The number of tokens of a group of `length` tokens that an expert takes."""
        return min(length, math.ceil(self.slack * self.chosen * length / self.experts))


Frequencies: TypeAlias = npt.NDArray[np.float64]

NORM_EPSILON = 1e-6
ROTARY_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions count `factor` times less (arXiv 2306.15595)."""

    factor: float

    def scaled(self, frequencies: Frequencies, base: float) -> tuple[Frequencies, float]:
        """The frequencies, radians a position, of each pair of a head, and the factor of all sines and cosines."""
        return frequencies / self.factor, 1.0


@dataclass(frozen=True, slots=True)
class BandScaling:
    """Of Llama 3.1 ("llama3"): waves longer than a share of the `original` context are `factor` times slower.

    Waves of more than `original / low` positions are slower, of fewer than `original / high` are kept, and those
    between are interpolated.
    """

    factor: float
    low: float
    high: float
    original: int

    def scaled(self, frequencies: Frequencies, base: float) -> tuple[Frequencies, float]:
        """As of LinearScaling."""
        turns = self.original * frequencies / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor), 1.0


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): pairs of frequencies that turn seldom are slower, those that turn often are kept, in
    between by a ramp over the pairs.
    """

    factor: float
    """How many times slower."""
    original: int
    """The context in which turns are counted."""
    amplitude: float
    """Multiplies sines and cosines."""
    fast: float = 32.0
    """Pairs that turn more often are kept."""
    slow: float = 1.0
    """Pairs that turn fewer times are slower by all of `factor`."""
    is_whole: bool = True
    """The ends of the ramp are whole pairs."""

    def scaled(self, frequencies: Frequencies, base: float) -> tuple[Frequencies, float]:
        """As of LinearScaling."""
        size = 2 * len(frequencies)

        def pair(turns: float) -> float:
            return size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair(self.fast), pair(self.slow)
        if self.is_whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        ramp = np.clip((np.arange(len(frequencies)) - low) / (high - low or 0.001), 0.0, 1.0)
        return frequencies * (1.0 - ramp + ramp / self.factor), self.amplitude


Scaling: TypeAlias = LinearScaling | BandScaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary positions: pair i of a head turns by `base` ** (-2i/size) a position, `scaling` apart."""

    base: float = ROTARY_BASE
    scaling: Scaling | None = None

    def turns(self, size: int, length: int) -> tuple[Frequencies, Frequencies]:
        """Cosines and sines [length, size/2], in float64, of a head of this size at positions from 0."""
        half = size // 2
        frequencies, amplitude = self.base ** (-np.arange(half) / half), 1.0
        if self.scaling is not None:
            frequencies, amplitude = self.scaling.scaled(frequencies, self.base)
        angles = np.arange(length)[:, None] * frequencies
        return amplitude * np.cos(angles), amplitude * np.sin(angles)


MATRICES = ("query", "key", "value", "output", "gate", "up", "down")
"""The matrices of a layer that may have a bias."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model; ValueError if `heads` does not divide `width` into heads of even size.

    The defaults are the model called nano: 131,904 parameters. Fields from `shared_heads` on are forms of other models.
    """

    vocabulary: int = 256
    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 64
    hidden: int | None = None
    """The width of the feed-forward half; None is 8/3 of `width`, which gives SwiGLU's three matrices the size of two
    of 4 x width, rounded up to a multiple of 4."""
    tied: bool = False
    """The logits are read off the token embedding."""
    dtype: str = "float32"
    """"float32" or "bfloat16"."""
    routing: Routing | None = None
    """Makes the feed-forward halves of experts, each of that width."""
    stacked: bool = False
    """Keeps all layers in tensors with an axis more, in front."""
    checkpoint: bool = False
    """Keeps of a layer its input alone for the backward pass, which computes the rest again."""
    microbatches: int | None = None
    """The training loss of a stacked model takes a batch through the layers in so many parts (`mesh_stages`)."""
    shared_heads: int | None = None
    """Fewer heads of keys and values than of queries; None is as many."""
    head_width: int | None = None
    """The width of a head, where it does not follow from `width`."""
    head_norms: bool = False
    """Norms of each head's queries and keys."""
    biases: tuple[str, ...] = ()
    """The matrices of a layer that have one."""
    window: int | None = None
    """Attention to the last so many positions only."""
    epsilon: float = NORM_EPSILON
    rotary: Rotary = Rotary()

    def __post_init__(self) -> None:
        if (self.head_width is None and self.width % self.heads) or self.head_size % 2:
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads of even size")
        if self.heads % self.key_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.key_heads} heads of keys and values evenly")

    @property
    def head_size(self) -> int:
        """The width of one attention head; even, because rotary positions turn pairs."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def key_heads(self) -> int:
        """How many heads of keys and values there are."""
        return self.heads if self.shared_heads is None else self.shared_heads

    @property
    def hidden_width(self) -> int:
        """The width of the feed-forward half, with the default resolved."""
        return self.hidden if self.hidden is not None else -(-8 * self.width // 12) * 4


class InitialTensor(NamedTuple):
    """A parameter's shape and the standard deviation of its normal initial values; None is all ones."""

    shape: tuple[int, ...]
    deviation: float | None


def parameters_of(config: ModelConfig) -> int:
    """How many parameters a model has."""
    return sum(math.prod(each.shape) for each in tensors(config).values())


def tensors(config: ModelConfig) -> dict[str, InitialTensor]:
    """Name -> shape and initial values of every parameter, in the order of the forward pass.

    The table defines all parameters: `init` fills it, and '/' in a name is one level of nesting, so the paths of the
    tree are the names that fragments and safetensors use. Layers are separate entries, or, in a `stacked` model, rows
    of one entry each, over which the forward pass is a scan: the compiler then sees one layer, whatever the depth.
    """
    width = config.width
    table = {"embedding": InitialTensor((config.vocabulary, width), 0.02)}
    layer = _layer_tensors(config)
    if config.stacked:
        table |= {
            f"layers/{name}": InitialTensor((config.layers, *shape), each) for name, (shape, each) in layer.items()
        }
    else:
        table |= {f"layers/{index}/{name}": each for index in range(config.layers) for name, each in layer.items()}
    table["norm"] = InitialTensor((width,), None)
    if not config.tied:
        table["head"] = InitialTensor((width, config.vocabulary), 0.02)
    return table


def _layer_tensors(config: ModelConfig) -> dict[str, InitialTensor]:
    """The same of one layer, by names within it."""
    width, hidden = config.width, config.hidden_width
    # The two matrices that write to the residual stream are scaled down, so that its variance at the last layer does
    # not grow with the depth.
    residual = (2 * config.layers) ** -0.5
    queries, keys = config.heads * config.head_size, config.key_heads * config.head_size
    table = {"attention/norm": InitialTensor((width,), None)}
    for name, size in (("query", queries), ("key", keys), ("value", keys)):
        table[f"attention/{name}"] = InitialTensor((width, size), width**-0.5)
    table["attention/output"] = InitialTensor((queries, width), queries**-0.5 * residual)
    if config.head_norms:
        table |= {f"attention/{name}_norm": InitialTensor((config.head_size,), None) for name in ("query", "key")}
    table["feedforward/norm"] = InitialTensor((width,), None)
    count = () if config.routing is None else (config.routing.experts,)
    if count:
        table["feedforward/router"] = InitialTensor((width, *count), 0.02)
    table["feedforward/gate"] = InitialTensor((*count, width, hidden), width**-0.5)
    table["feedforward/up"] = InitialTensor((*count, width, hidden), width**-0.5)
    table["feedforward/down"] = InitialTensor((*count, hidden, width), hidden**-0.5 * residual)
    for name, (shape, _) in list(table.items()):
        if name.rpartition("/")[2] in config.biases:
            table[f"{name}_bias"] = InitialTensor(shape[-1:], 0.0)
    return table
