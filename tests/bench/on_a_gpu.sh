#!/usr/bin/env bash
# All that is measured on one GPU, on a machine that may be bare and may be taken away:
#     tests/bench/on_a_gpu.sh [--minutes 12] [--out DIR] [--wheels DIR] [--data DIR] [--tiny] [--long] [--only STEP]...
#     tests/bench/on_a_gpu.sh --fetch-wheels DIR [--python 3.12] [--without NAME,...]
# By python3, or what PYTHON names, which has jax for CUDA; docs/how-to/islands.md says more, and gpu_steps.py does it.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m tests.bench.gpu_steps "$@"
