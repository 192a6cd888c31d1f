"""The description of an island that was compiled for, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.programs.ahead.island import BATCH, CHECKPOINT, DEVICES, Island
from isthmus.programs.results.numbers import scaled, seconds, size, whole

_HELPS: Final = {
    BATCH: "a smaller batch",
    CHECKPOINT: "jax.checkpoint in the loss",
    DEVICES: "an island of more devices",
}


def told(island: Island) -> str:
    """The figures of an island as lines; the first says whether it fits."""
    rows = list(_rows(island))
    width = max(len(name) for name, _ in rows)
    fits = "fits" if island.fits else "does not fit"
    there = f"{island.devices} x {island.device_kind}, learner {island.slot}"
    return "\n".join([f"{island.island} ({there}): {fits}", *(f"  {name.ljust(width)}  {text}" for name, text in rows)])


def _rows(island: Island) -> Iterator[tuple[str, str]]:
    memory = island.memory
    limit = size(island.memory_limit_bytes)
    yield "memory", f"{size(island.memory_bytes)} of the {limit} of each device, in {memory.function}"
    parts = {
        "state": memory.state,
        "batch" if memory.function in ("step", "gradient") else "what it is given": memory.given,
        "temporaries": memory.temporaries,
        "code": memory.code,
        "padding": memory.padding,
        "all else": memory.unknown,
    }
    yield "", ", ".join(f"{name} {size(value)}" for name, value in parts.items() if value > 0)
    if island.helps:
        yield "would help", ", or ".join(_HELPS[each] for each in island.helps)
    loops = island.unbounded_loops
    once = f", loops without a known end counted once: {loops}" if loops else ""
    yield "a step", f"{scaled(island.flops_per_device, 'FLOP')} of matrix products on each device{once}"
    if island.predicted_step_seconds is not None:
        products = f"of which its products need {seconds(island.predicted_products_seconds)}"
        yield "", f"predicted: {seconds(island.predicted_step_seconds)} at best, {products}; nothing ran"
    if (batch := island.batch_max) is not None:
        yield "largest batch", f"{batch.rows} (to 1 in 8), {whole(batch.tokens)} tokens: {size(batch.memory_bytes)}"
        if batch.predicted_step_seconds is not None:
            yield "", f"predicted: {seconds(batch.predicted_step_seconds)} a step at best"
    elif island.is_fitted:
        yield "largest batch", "none: the step does not fit with the smallest that the devices can share"
    many = island.collectives
    beside = f"{many.asynchronous} asynchronous, {many.overlapped} with computation scheduled beside them"
    if island.devices > 1 and (many.count or island.fits):  # A refused program has no schedule.
        yield "collectives", f"{many.count} in a step, {beside}" if many.count else "none in a step"
    if pieces := island.fragment_bytes:
        low, high = size(min(pieces)), size(max(pieces))
        yield "fragments", f"{len(pieces)}, of {low}" + (f" to {high}" if low != high else "")
    if island.options:
        yield "options", f"{len(island.options)}, in --json; a run has them where LIBTPU_INIT_ARGS says so"
    versions = ", ".join(f"{name} {version}" for name, version in island.versions.items())
    earlier = ", by an earlier command" if island.is_kept else ""
    yield "compiled", f"{len(island.functions)} functions in {seconds(island.compile_seconds)}{earlier}; {versions}"
    if island.hosts > 1:
        yield "machines", f"{island.hosts}, each with a process of the island"
