"""Tokens a second of `isthmus sample` and of transformers' generate, on one folder, each on one core.

python -m tests.bench.long.bench_sample [--width 512] [--layers 8] [--json]   # in .venv-torch

One prompt, 200 tokens, the most likely one each; both are loaded and have written once before the clock runs. A second
figure of ours has loading and compiling in it. The two write in turn; medians are of five.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOKENS = 200
PROMPT = "The quick brown fox jumps over the lazy dog, and"
TIMES = 5


def folder_of(width: int, layers: int, to: Path) -> Any:
    """A model folder of bytes, with random weights, and its model in transformers."""
    import torch
    import transformers

    from isthmus.programs.model_folders.tokens import byte_tokenizer

    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(to)
    for name, data in byte_tokenizer("Making a folder").items():
        (to / name).write_bytes(data)
    return transformers.AutoModelForCausalLM.from_pretrained(to).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    import torch

    from isthmus.programs.trained.sample import Writer
    from isthmus.programs.trained.text_model import text_model

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        theirs = folder_of(asked.width, asked.layers, Path(made))
        begun = time.perf_counter()
        model = text_model(Path(made), "Measuring")
        writer = Writer(model, "Measuring")

        def ours() -> str:
            return "".join(writer.continuation(PROMPT.encode(), TOKENS, temperature=0.0))

        ours()
        first = TOKENS / (time.perf_counter() - begun)
    prompt = torch.tensor([list(PROMPT.encode())])

    def generate() -> Any:
        return theirs.generate(prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)

    generate()
    speeds: dict[str, list[float]] = {"ours": [], "generate": []}
    for _ in range(TIMES):
        for name, call in (("ours", ours), ("generate", generate)):
            begun = time.perf_counter()
            call()
            speeds[name].append(TOKENS / (time.perf_counter() - begun))
    found = {name: statistics.median(each) for name, each in speeds.items()}
    found |= {"ratio": found["ours"] / found["generate"], "first": first}
    if asked.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    sys.stdout.write(f"width {asked.width}, {asked.layers} layers, {TOKENS} tokens a time, one core\n")
    for name, value in found.items():
        sys.stdout.write(f"{name:>10} {value:8.2f}{'' if name == 'ratio' else ' tokens/s'}\n")


if __name__ == "__main__":
    main()
