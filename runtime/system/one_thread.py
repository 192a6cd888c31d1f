"""The variables with which the numeric libraries compute in the thread that asks for it, and in no other.

They have to be set before the libraries are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

XLA_FLAGS: Final = " ".join(
    (
        "--xla_cpu_multi_thread_eigen=false",  # An operation is not split.
        "--xla_cpu_enable_concurrency_optimized_scheduler=false",  # Operations follow each other, none beside another.
        "--xla_cpu_experimental_ynn_fusion_type=",  # Nor by YNNPACK: another thread does what follows a product.
    )
)
"""For the CPU alone: other devices do not look at them."""

ONE_THREAD: Final[Mapping[str, str]] = MappingProxyType(
    {"XLA_FLAGS": XLA_FLAGS, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
)
