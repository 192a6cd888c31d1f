"""The inner optimizer of the shipped task: AdamW on a schedule of the run's progress.

The schedule depends on the share of the run's token budget that all learners together have trained (`progress`, an
extra argument of the update), not on a count of steps: a learner that joins late, or is slow, then has the same
learning rate as all others.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

BETA_1, BETA_2, EPSILON = 0.9, 0.95, 1e-8
NORM = "norm"
"""How the path of a norm ends."""
FINAL_SHARE = 0.05
"""The learning rate at the end of the run, as a share of its peak."""


def learning_rate(progress: jax.Array | float, *, peak: float, warmup: float) -> jax.Array:
    """The learning rate (float32) at `progress` in [0, 1].

    It rises from 0 to `peak` on a line while progress < `warmup` (0 <= warmup < 1), then falls along half a cosine to 5
    % of `peak`; outside [0, 1] it is that of the nearer end.
    """
    progress = jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)
    after = jnp.maximum(progress - warmup, 0.0) / (1.0 - warmup)
    cosine = FINAL_SHARE + (1.0 - FINAL_SHARE) * 0.5 * (1.0 + jnp.cos(jnp.pi * after))
    share = jnp.where(progress < warmup, progress / warmup, cosine) if warmup > 0.0 else cosine
    return peak * share


def scale_by_progress(*, peak: float, warmup: float) -> optax.GradientTransformationExtraArgs:
    """Multiplies updates by minus `learning_rate(progress)`; its `update` needs the keyword `progress`. No state."""

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, *, progress: Any, **_: Any
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        rate = learning_rate(progress, peak=peak, warmup=warmup)
        return jax.tree.map(lambda leaf: -rate.astype(leaf.dtype) * leaf, updates), state

    return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)


def is_matrix(params: optax.Params) -> Any:
    """A tree of truth values that marks the tensors with at least two axes, but for stacks of norms: those that
    decay."""

    def is_one(path: Any, leaf: Any) -> bool:
        return leaf.ndim >= 2 and not jax.tree_util.keystr(path, simple=True, separator="/").endswith(NORM)

    return jax.tree_util.tree_map_with_path(is_one, params)


def adamw(*, peak: float, warmup: float, weight_decay: float, clip: float) -> optax.GradientTransformationExtraArgs:
    """AdamW (arXiv 1711.05101) with betas (0.9, 0.95) and eps 1e-8, with decay on matrices only.

    The gradient's global norm is clipped at `clip` first, and the learning rate follows progress: `update(grads, state,
    params, progress=...)`.
    """
    return optax.chain(
        optax.clip_by_global_norm(clip),
        optax.scale_by_adam(BETA_1, BETA_2, EPSILON),
        optax.add_decayed_weights(weight_decay, mask=is_matrix),
        scale_by_progress(peak=peak, warmup=warmup),
    )
