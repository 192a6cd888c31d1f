"""Kinds of devices, with the figures that their makers publish, and the names under which JAX reports them.

It decides which kind a name means, and nothing else: predictions of what a device will reach in practice are the
caller's. A figure that is not published for a kind, or means nothing there, is None, and callers that need it must
report that. Figures are those of one device as JAX counts them: a chip of a TPU, a GPU, one core of a CPU. Interconnect
is within a slice or a server, per direction: where a data sheet gives both directions together, half of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, final

from isthmus.runtime.errors import ConfigError

_TERA: Final = 1e12
_GIGA: Final = 10**9
_GIBI: Final = 1 << 30


@final
@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device. `names` are further names, those that JAX reports first; `flops` is dense bfloat16 FLOP/s.

    Memory is in bytes and bytes a second, the interconnect in bits a second, the price in any currency per device and
    hour. `source` cites where the figures come from. `tokens_measured`: from how many tokens a step on was measured to
    be bound by computation; None where it was not.
    """

    kind: str
    names: tuple[str, ...] = ()
    flops: float | None = None
    memory_bytes: int | None = None
    memory_bandwidth_bytes: int | None = None
    interconnect_bits: int | None = None
    price_per_hour: float | None = None
    source: str = ""
    is_cpu: bool = False
    tokens_measured: int | None = None

    @property
    def tokens_filling(self) -> int | None:
        """From how many tokens a step on is bound by computation, and not by memory: as measured, or else by the
        published figures; None of a CPU, and where they are not known.

        STEP_FLOPS n t / flops = STEP_BYTES n / bandwidth, for any number n of parameters. It is the least: the time
        that a device takes to begin each of a step's operations is not published, and comes on top.
        """
        if self.tokens_measured is not None:
            return self.tokens_measured
        if self.is_cpu or not self.flops or not self.memory_bandwidth_bytes:
            return None
        return math.ceil(STEP_BYTES / STEP_FLOPS * self.flops / self.memory_bandwidth_bytes)


STEP_FLOPS: Final = 6
"""Of a step, for each parameter and token: two forwards, four backwards (arXiv 2001.08361, section 2.1)."""
STEP_BYTES: Final = 40
"""Of a step, for each parameter, whatever the batch: it is read forwards and backwards and its gradient written, 12; by
AdamW parameter, gradient and two moments are read, 16, and three of them written, 12. All in float32."""


_TPU_DOCS: Final = "https://docs.cloud.google.com/tpu/docs"

CATALOGUE: Final = (
    Device(
        "TPU v4",
        ("v4",),
        275 * _TERA,
        32 * _GIBI,
        1_200 * _GIGA,
        2_400 * _GIGA,
        source=f"{_TPU_DOCS}/v4; interconnect, 6 links of 50 GB/s: arXiv 2304.01433",
    ),
    Device(
        "TPU v5e",
        ("TPU v5 lite", "v5e"),
        197 * _TERA,
        16 * _GIGA,
        819 * _GIGA,
        1_600 * _GIGA,
        source=f"{_TPU_DOCS}/v5e",
    ),
    Device(
        "TPU v5p",
        ("TPU v5", "v5p"),
        459 * _TERA,
        95 * _GIGA,
        2_765 * _GIGA,
        4_800 * _GIGA,
        source=f"{_TPU_DOCS}/v5p",
    ),
    Device(
        "TPU v6e",
        ("TPU v6 lite", "v6e"),
        918 * _TERA,
        32 * _GIGA,
        1_600 * _GIGA,
        3_200 * _GIGA,
        source=f"{_TPU_DOCS}/v6e",
    ),
    Device(
        "NVIDIA A100 40GB",
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100", "A100"),
        312 * _TERA,
        40 * _GIGA,
        1_555 * _GIGA,
        2_400 * _GIGA,
        source="NVIDIA A100 Tensor Core GPU data sheet (SXM4, 40 GB)",
    ),
    Device(
        "NVIDIA A100 80GB",
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "A100 80GB"),
        312 * _TERA,
        80 * _GIGA,
        2_039 * _GIGA,
        2_400 * _GIGA,
        source="NVIDIA A100 Tensor Core GPU data sheet, nvidia-1758950-r4 (SXM4, 80 GB)",
    ),
    Device(
        "NVIDIA H100",
        ("NVIDIA H100 80GB HBM3", "H100"),
        989.4 * _TERA,
        80 * _GIGA,
        3_350 * _GIGA,
        3_600 * _GIGA,
        source="https://www.nvidia.com/en-us/data-center/h100 (SXM; 1,979 TFLOP/s are with sparsity)",
    ),
    Device(
        "NVIDIA H100 PCIe",
        ("H100 PCIe",),
        756 * _TERA,
        80 * _GIGA,
        2_000 * _GIGA,
        2_400 * _GIGA,
        source="NVIDIA H100 Tensor Core GPU data sheet (PCIe; 1,513 TFLOP/s are with sparsity)",
    ),
    Device(
        "NVIDIA H200",
        ("H200",),
        989.4 * _TERA,
        141 * _GIGA,
        4_800 * _GIGA,
        3_600 * _GIGA,
        source="https://www.nvidia.com/en-us/data-center/h200 (SXM; 1,979 TFLOP/s are with sparsity)",
    ),
    Device(
        "CPU",
        ("cpu",),
        78.4e9,
        memory_bandwidth_bytes=3_200_000_000,
        source="one core of an AMD EPYC 7763: 2.45 GHz x 2 fused multiply-adds x 8 float32 (it has no bfloat16), and "
        "1/64 of eight channels DDR4-3200; say what yours is with [[device]]",
        is_cpu=True,
    ),
)
"""The built-in kinds, by name."""


def find(kind: str, doing: str, catalogue: Iterable[Device] = CATALOGUE) -> Device:
    """The device that `kind` names, ignoring case; ConfigError, with the nearest names, if there is none.

    Of two devices that share a name the first wins, so that a user's own come before the built-in ones.
    """
    devices = tuple(catalogue)
    wanted = kind.casefold()
    for device in devices:
        if wanted in (name.casefold() for name in (device.kind, *device.names)):
            return device
    kinds = {name.casefold(): device.kind for device in devices for name in (device.kind, *device.names)}
    near = dict.fromkeys(kinds[name] for name in get_close_matches(wanted, sorted(kinds), n=5, cutoff=0.5))
    hint = f"The nearest: {', '.join(near)}." if near else f"There is: {', '.join(dict.fromkeys(kinds.values()))}."
    raise ConfigError(
        doing, "a device kind that is known", repr(kind), f"{hint} Or add it: [[device]] in cluster.toml."
    )
