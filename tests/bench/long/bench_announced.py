"""What it costs a step of a user's own loop that its leaves and optimizers are compared with what it announced.

    .venv-torch/bin/python -m tests.bench.long.bench_announced [--blocks 50] [--steps 2000] [--json]

A module of so many blocks, each a linear layer and two norms, one of which keeps statistics: 50 blocks have 300
parameters and 150 buffers, 100 of them statistics. The first half of the blocks is frozen. Microseconds of CPU of a
step are the least of five series, of the whole comparison after a step, and of its parts; frozen leaves are read at
powers of four alone, and what that takes is by itself.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

from isthmus.ops.island.torch_announced import AnnouncedModule
from isthmus.ops.island.torch_model import Model, OptimizerState

RULES = (("**", "rda"),)
SERIES = 5


def block(width: int) -> torch.nn.Module:
    """Six parameters, two buffers of statistics, and a counter."""
    return torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU(), torch.nn.BatchNorm1d(width)
    )


def microseconds(call: Callable[[], object], steps: int) -> float:
    """Of one call, of CPU: the least of some series, because other processes only add."""
    series = []
    for _ in range(SERIES):
        begun = time.thread_time()
        for _ in range(steps):
            call()
        series.append((time.thread_time() - begun) / steps * 1e6)
    return min(series)


def measure(blocks: int, width: int, steps: int) -> dict[str, float]:
    """The figures of one module."""
    module = torch.nn.Sequential(*(block(width) for _ in range(blocks)))
    for each in list(module)[: blocks // 2]:
        each.requires_grad_(False)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    model = Model(module, RULES, torch.device("cpu"), names_take_part=True)
    announced = AnnouncedModule(model, OptimizerState(optimizer, model))
    parts = {
        "places": announced._place_change,
        "requires_grad": announced._switch_change,
        "forms": announced._form_change,
        "frozen": announced._frozen_change,
        "optimizers": announced._optimizer_change,
    }
    figures = {"parameters": len(list(module.parameters())), "buffers": len(list(module.buffers()))}
    announced.frozen._steps = 1 << 40  # So that no power of four comes.
    figures |= {"step_us": microseconds(announced.after_step, steps)}
    figures |= {f"{name}_us": microseconds(part, steps) for name, part in parts.items()}
    frozen_bytes = sum(leaf.numel() * leaf.element_size() for leaf in model.frozen.values())
    read = microseconds(announced.frozen.change, 1 + steps // 100)
    return {**figures, "frozen_bytes": frozen_bytes, "read_us": read, "read_gb_per_s": frozen_bytes / read / 1e3}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=50)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(options.blocks, options.width, options.steps)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:<16} {value:,.1f}" if isinstance(value, float) else f"{name:<16} {value:,}")


if __name__ == "__main__":
    main()
