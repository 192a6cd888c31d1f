"""The inner optimizers of the shipped task, AdamW and Muon, on the shipped schedule (`schedule`).

`progress`, the share of the run's token budget that all learners together have trained, is an extra argument of the
update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from isthmus.ops.island.schedule import BETA_1, BETA_2, EPSILON, FINAL_SHARE, RateSchedule

NORM = "norm"
"""How the path of a norm ends."""
BETA_MUON: Final = 0.95
ITERATIONS: Final = 5
"""Of Newton and Schulz."""
COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""Of an iteration, as published (Jordan 2024). optax makes a loop where it gets those of each iteration; where it gets
them once, it unrolls: the step of nano then has three quarters more instructions, and takes a tenth more CPU
(docs/decisions/0051)."""
RMS_MUON: Final = 0.2
"""The root mean square of Muon's update at a learning rate of 1: about that of AdamW's (arXiv 2502.16982, section 2.2),
so that one learning rate and one weight decay serve both."""


def learning_rate(progress: jax.Array | float, *, peak: float, schedule: RateSchedule) -> jax.Array:
    """The learning rate (float32) at `progress` in [0, 1]: `peak` times `schedule.share`, traced."""
    warmup, begin = schedule.warmup, schedule.falls_from
    progress = jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)
    fallen = jnp.maximum(progress - begin, 0.0) / (1.0 - begin)
    twice = 1.0 + jnp.cos(jnp.pi * fallen) if schedule.name == "cosine" else 2.0 * (1.0 - fallen)
    falling = FINAL_SHARE + (1.0 - FINAL_SHARE) * 0.5 * twice
    share = jnp.where(progress < warmup, progress / warmup, falling) if warmup > 0.0 else falling
    return peak * share


def scale_by_progress(*, peak: float, schedule: RateSchedule) -> optax.GradientTransformationExtraArgs:
    """Multiplies updates by minus `learning_rate(progress)`; its `update` needs the keyword `progress`. No state."""

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, *, progress: Any, **_: Any
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        rate = learning_rate(progress, peak=peak, schedule=schedule)
        return jax.tree.map(lambda leaf: -rate.astype(leaf.dtype) * leaf, updates), state

    return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)


def is_matrix(params: optax.Params) -> Any:
    """A tree of truth values that marks the tensors with at least two axes, but for stacks of norms: those that
    decay."""

    def is_one(path: Any, leaf: Any) -> bool:
        return leaf.ndim >= 2 and not jax.tree_util.keystr(path, simple=True, separator="/").endswith(NORM)

    return jax.tree_util.tree_map_with_path(is_one, params)


def adamw(
    *, peak: float, schedule: RateSchedule, weight_decay: float, clip: float
) -> optax.GradientTransformationExtraArgs:
    """AdamW (arXiv 1711.05101) with betas (0.9, 0.95) and eps 1e-8, with decay on matrices only.

    The gradient's global norm is clipped at `clip` first, and the learning rate follows progress: `update(grads, state,
    params, progress=...)`.
    """
    return _scheduled(optax.scale_by_adam(BETA_1, BETA_2, EPSILON), peak, schedule, weight_decay, clip)


def muon(
    *, peak: float, schedule: RateSchedule, weight_decay: float, clip: float, is_hidden: Callable[[Any], Any]
) -> optax.GradientTransformationExtraArgs:
    """Muon for the tensors that `is_hidden(params)` marks, and AdamW for the others; decay, clipping and learning rate
    as `adamw` has them.

    Muon (Jordan 2024; arXiv 2502.16982) makes the momentum of a matrix (beta 0.95, Nesterov) nearly orthogonal, in five
    iterations of Newton and Schulz, and gives it a root mean square of about 0.2. Of a tensor with more axes the last
    two are the matrix. It keeps one moment, where AdamW keeps two.
    """
    chosen = {"muon": _scale_by_muon(), "adamw": optax.scale_by_adam(BETA_1, BETA_2, EPSILON)}
    parted = optax.partition(
        chosen, lambda params: jax.tree.map(lambda hidden: "muon" if hidden else "adamw", is_hidden(params))
    )
    return _scheduled(parted, peak, schedule, weight_decay, clip)


def _scale_by_muon() -> optax.GradientTransformation:
    """An orthogonal a x b matrix has a root mean square of 1 / sqrt(max(a, b))."""

    def axes(updates: Any) -> Any:
        return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(-2, -1), updates)

    def scaled(updates: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(lambda leaf: RMS_MUON * max(leaf.shape[-2:]) ** 0.5 * leaf, updates)

    orthogonal = contrib.scale_by_muon((COEFFICIENTS,) * ITERATIONS, beta=BETA_MUON, weight_dimension_numbers=axes)
    return optax.chain(orthogonal, optax.stateless(scaled))


def _scheduled(
    scaling: Any, peak: float, schedule: RateSchedule, weight_decay: float, clip: float
) -> optax.GradientTransformationExtraArgs:
    return optax.chain(
        optax.clip_by_global_norm(clip),
        scaling,
        optax.add_decayed_weights(weight_decay, mask=is_matrix),
        scale_by_progress(peak=peak, schedule=schedule),
    )
