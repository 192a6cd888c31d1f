"""The number of floating-point operations in the matrix products of a traced function: analytic, from its jaxpr.

A compiler's own figure counts the body of a loop once and leaves kernels out, so it is no measure of a model. Here a
product counts 2 operations per multiply-add (arXiv 2204.02311, appendix B), the body of a scan as often as it runs, of
a branch the larger side. Elementwise operations are left out: they are limited by memory. A `while` whose number of
turns no shape determines counts once, and is reported (`Flops.unbounded`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Flops(NamedTuple):
    """Operations of matrix products; `unbounded`: loops of unknown length, whose bodies were counted once."""

    products: int
    unbounded: int = 0

    def __add__(self, other: tuple[Any, ...]) -> Flops:
        return Flops(self.products + other[0], self.unbounded + other[1])

    def times(self, count: int) -> Flops:
        """The operations of `count` repetitions."""
        return Flops(self.products * count, self.unbounded)


def matrix_flops(jaxpr: Any) -> Flops:
    """The operations of a jaxpr, closed or not, and of all that it calls."""
    total = Flops(0)
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        total += _of_equation(equation)
    return total


def _of_equation(equation: Any) -> Flops:
    name, params = equation.primitive.name, equation.params
    if (count := _PRODUCTS.get(name)) is not None:
        return Flops(count(equation))
    if name == "scan":
        return matrix_flops(params["jaxpr"]).times(params["length"])
    if name == "while":
        once = matrix_flops(params["body_jaxpr"]) + matrix_flops(params["cond_jaxpr"])
        return Flops(once.products, once.unbounded + (once.products > 0))
    if name == "cond":
        return max((matrix_flops(branch) for branch in params["branches"]), default=Flops(0))
    total = Flops(0)
    for inner in _inner(params.values()):
        total += matrix_flops(inner)
    return total


def _inner(values: Any) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation: of a call, a custom derivative, a checkpoint."""
    for value in values:
        if hasattr(getattr(value, "jaxpr", value), "eqns"):
            yield value
        elif isinstance(value, tuple | list):
            yield from _inner(value)


def _of_dot(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left: tuple[int, ...] = equation.invars[0].aval.shape
    made: int = math.prod(equation.outvars[0].aval.shape)
    taken: int = math.prod(left[axis] for axis in contracted)
    return 2 * made * taken


def _of_convolution(equation: Any) -> int:
    kernel, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
    taken: int = math.prod(kernel) // kernel[numbers.rhs_spec[0]]  # Spatial size times input channels of a group.
    made: int = math.prod(equation.outvars[0].aval.shape)
    return 2 * made * taken


_PRODUCTS: dict[str, Callable[[Any], int]] = {"dot_general": _of_dot, "conv_general_dilated": _of_convolution}
