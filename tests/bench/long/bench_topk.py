"""What top-k with error feedback costs beside one bit a value, at equal bytes.

    python -m tests.bench.long.bench_topk [--steps 2000] [--seeds 1] [--case NAME ...] [--kept FILE.json]

The language model, nano, by decoupled-diloco in virtual time, four learners, batches of 8. Of each chunk of 4,096
values of an outer gradient and of what was left of the former ones, times .95, the largest 1/64 or 1/32 are sent in 2
bits (-1.5, -.5, .5, 1.5 times their mean magnitude), their places as Rice-coded gaps, and one scale (SparseLoCo, arXiv
2508.15706). Each answer is merged here, so what is left is what was not sent. The answers travel as the float32 values
that they stand for; their bytes are counted. Other cases are formats as they are sent, with intervals that need as
many bytes. Told are the held-out loss, nats a byte, and how many times fewer bytes leave a learner than in float32
every 24 steps. Everything is deterministic but for the text that is trained on. `--kept` has what is done; the same
call goes on.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from isthmus.ops.exchange.formats import FORMATS
from isthmus.ops.kernels.buffers import Float32
from isthmus.ops.learner import fragment_send
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.programs import language_model
from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.bench.kept_cells import KeptCells
from tests.bench.long.bench_joined import replaced

CHUNK: Final = 4096
KEPT_SHARE: Final = 0.95
INTERVAL: Final = 24
CASES: Final[dict[str, tuple[int, Mapping[str, Any]]]] = {
    "int4": (0, {"push": "int4"}),
    "int1": (0, {"push": "int1"}),
    "int1, H = 96": (0, {"push": "int1", "interval": 96}),
    "top 1/32": (32, {}),
    "top 1/32, average": (32, {"merge": "average"}),
    "top 1/64": (64, {}),
    "top 1/64, average": (64, {"merge": "average"}),
    "int1, H = 170": (0, {"push": "int1", "interval": 170}),
}
"""Name -> 1 / share of the values, 0 for all of them, and the settings."""


class TopK:
    """The code of all learners, with what each has not sent yet, by (slot, fragment)."""

    def __init__(self, one_of: int) -> None:
        self._one_of = one_of
        self._left: dict[tuple[int, int], Float32] = {}
        self.bits = self.values = 0

    def sent(self, key: tuple[int, int], gradient: Float32) -> Float32:
        """What an outer gradient is decoded to."""
        whole = gradient + np.float32(KEPT_SHARE) * self._left.get(key, np.float32(0))
        coded = np.zeros_like(whole)
        for begin in range(0, whole.size, CHUNK):
            chunk = whole[begin : begin + CHUNK]
            count = max(1, chunk.size // self._one_of)
            places = np.sort(np.argpartition(np.abs(chunk), -count)[-count:])
            values = chunk[places]
            scale = np.abs(values).mean()
            levels = np.where(np.abs(values) >= scale, 1.5, 0.5).astype(np.float32)
            coded[begin + places] = np.sign(values) * levels * scale
            self.bits += 32 + 2 * count + rice_bits(np.diff(places, prepend=-1) - 1, self._one_of)
        self.values += whole.size
        self._left[key] = whole - coded
        return coded


def rice_bits(gaps: np.ndarray[Any, Any], mean: int) -> int:
    """The bits of gaps in the Rice code whose parameter fits their mean."""
    parameter = max(0, mean.bit_length() - 1)
    return int((gaps >> parameter).sum()) + gaps.size * (1 + parameter)


def run(worlds: Worlds, seed: int, steps: int, name: str) -> dict[str, float]:
    """The loss of a case, and how many times fewer bytes it needs."""
    one_of, settings = CASES[name]
    code = TopK(one_of) if one_of else None

    def sending(make: Any) -> Any:
        def answered(self: FragmentSend, capture: Any) -> Any:
            answer = make(self, capture)
            if code is None or answer["kind"] not in ("merge", "final"):
                return answer
            coded = code.sent((answer["slot"], answer["fragment"]), answer["gradient"])
            fragment = self._fragments[answer["fragment"]]
            return {**answer, "gradient": coded, "norms": fragment_send.norms(coded, fragment)}

        return answered

    chosen = {"interval": INTERVAL, "push": "float32", **settings}
    with replaced(FragmentSend, "_answer", sending):
        program = Program("decoupled-diloco", **chosen)
        result = worlds.run(program, task=language_model.task(batch=8), learners=4, steps=steps, seed=seed)
    bits = FORMATS[chosen["push"]].bits if code is None else code.bits / code.values
    return {"loss": float(result.eval_loss or np.nan), "fewer": 32 / bits * chosen["interval"] / INTERVAL}


def main() -> None:
    """Measure what is not kept yet, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="of each learner: 83 sweeps in 2000")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--kept", type=Path)
    asked = parser.parse_args()
    kept = KeptCells(asked.kept)
    cases = asked.case or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(Path(folder))
        for seed in range(asked.seeds):
            for name in cases:
                key = f"{name}, {asked.steps} steps, seed {seed}"
                if key not in kept:
                    kept.keep(key, run(worlds, seed, asked.steps, name))
                    print(f"{key}: {kept[key]['loss']:.3f}, {kept[key]['fewer']:.1f} times fewer bytes", flush=True)
        worlds.close()
    print(f"{'case':20} fewer bytes  loss ({asked.seeds} seeds, {asked.steps // INTERVAL} sweeps at H = {INTERVAL})")
    for name in cases:
        found = [kept[f"{name}, {asked.steps} steps, seed {seed}"] for seed in range(asked.seeds)]
        losses = [each["loss"] for each in found]
        fewer = statistics.mean(each["fewer"] for each in found)
        print(f"{name:20} {fewer:11.1f}  {statistics.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})")
    print(kept.told())


if __name__ == "__main__":
    main()
