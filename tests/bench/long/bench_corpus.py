"""What a run of a model folder holds in memory, by the size of its data, and how often it makes tokens of them.

    python -m tests.bench.long.bench_corpus [--megabytes 250 1000] [--form jsonl] [--learners 4] [--json]

It needs the extra `folders`. A made tokenizer (of 8,000 words), made rows of 2 KB and a made model of
one layer; a cache that is empty at first. Of every process of a run, and of its children, the most of memory that is
not of files (RssAnon) that was seen, ten times a second; of a role the largest process, and of the run the most of all
together. `tokenized` is how often a file was read as text, `seconds` the time until the run was over, `again` that of a
second run, which finds the tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np

ISTHMUS: Final = str(Path(sys.executable).with_name("isthmus"))
HOOK: Final = Path(__file__).parents[1] / "tokenized"
VOCABULARY: Final = 8000
WIDTH: Final = 32
ROW_WORDS: Final = 220
PAUSE_SECONDS: Final = 0.1


def words_of(seed: int) -> list[str]:
    """Words of which texts are made."""
    rng = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprstvw" for b in ("a", "e", "i", "o", "u", "ar", "en")]
    return list(dict.fromkeys("".join(rng.choices(syllables, k=rng.randint(2, 5))) for _ in range(VOCABULARY - 1000)))


def write_folder(to: Path, words: list[str]) -> None:
    """A model folder of the Llama family, with weights drawn at random, and its tokenizer."""
    import tokenizers
    from safetensors.numpy import save_file
    from tokenizers import models, pre_tokenizers

    to.mkdir()
    vocabulary = {word: index for index, word in enumerate(["</s>", "<unk>", ".", *words])}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(to / "tokenizer.json"))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }
    (to / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        **{f"{layer}.self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"},
        **{f"{layer}.mlp.{name}_proj.weight": (2 * WIDTH, WIDTH) for name in ("gate", "up")},
        f"{layer}.mlp.down_proj.weight": (WIDTH, 2 * WIDTH),
    }
    tensors = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = ("model.norm.weight", f"{layer}.input_layernorm.weight", f"{layer}.post_attention_layernorm.weight")
    tensors |= {name: np.ones(WIDTH, np.float32) for name in norms}
    save_file(tensors, to / "model.safetensors", {"format": "pt"})


def write_rows(path: Path, words: list[str], size_bytes: int) -> None:
    """Rows of a text each, until the file is that large; as plain text, where its suffix says so, without rows."""
    rng = random.Random(path.name)
    written = 0
    with path.open("w") as file:
        while written < size_bytes:
            text = " ".join(rng.choices(words, k=ROW_WORDS))
            written += file.write(json.dumps({"text": text}) + "\n" if path.suffix == ".jsonl" else f"{text}.\n")


def processes_of(first: int, known: dict[int, str]) -> dict[int, int]:
    """The bytes of RssAnon of a process, of all that came of it, and of what came of these; `known` are those that were
    seen, by what they call themselves."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                lines = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines())
            except OSError:
                continue
            if "RssAnon" in lines:
                parents[int(entry.name)] = int(lines["PPid"])
                sizes[int(entry.name)] = int(lines["RssAnon"].split()[0]) << 10
    for pid in sorted(parents):
        above = pid
        while above in parents and above != first and above not in known:
            above = parents[above]
        if above == first or above in known:
            known[pid] = role_of(pid) or known.get(pid, "")
    return {pid: size for pid, size in sizes.items() if pid in known}


def role_of(pid: int) -> str:
    """What a process calls itself: isthmus ROLE/N; empty for one that has no such title."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().split()
    except (OSError, UnicodeDecodeError):
        return ""
    return next((word.partition("/")[0] for word in words[1:2] if words[0].startswith("isthmus")), "")


def train(folder: Path, data: Path, run: Path, cache: Path, learners: int) -> dict[str, Any]:
    """One run, watched until it is over."""
    counted = run.with_suffix(".tokenized")
    counted.touch()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HOOK), os.environ.get("PYTHONPATH")))),
        "TOKENIZED": str(counted),
        "XDG_CACHE_HOME": str(cache),
    }
    command = [ISTHMUS, "train", "--model", str(folder), "--data", str(data), "--learners", str(learners), "--quiet"]
    command += ["--run-dir", str(run), "--tokens", "40000", "--set", "task.context=64", "--set", "task.batch=8"]
    command += ["--set", "run.evaluate=ends"]
    peaks: dict[int, int] = defaultdict(int)
    names: dict[int, str] = {}
    together = 0
    begun = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            there = processes_of(process.pid, names)
            together = max(together, sum(there.values()))
            for pid, size in there.items():
                peaks[pid] = max(peaks[pid], size)
            time.sleep(PAUSE_SECONDS)
        assert process.stderr is not None
        error = process.stderr.read().decode()
    if process.returncode:
        raise SystemExit(error)
    by_role: dict[str, int] = defaultdict(int)
    for pid, size in peaks.items():
        role = "request" if pid == process.pid else names[pid] or "others"
        by_role[role] = max(by_role[role], size)
    seconds = time.monotonic() - begun
    return {
        "tokenized": len(counted.read_text().splitlines()),
        "processes": len(peaks),
        "together": together,
        "by_role": dict(sorted(by_role.items())),
        "seconds": round(seconds, 1),
    }


def measured(megabytes: list[int], form: str, learners: int, where: Path) -> list[dict[str, Any]]:
    """A run for each size, and a second one that finds the tokens."""
    words = words_of(0)
    write_folder(where / "model", words)
    found = []
    for size in megabytes:
        data, cache = where / f"{size}.{form}", where / f"cache-{size}"
        write_rows(data, words, size * 1_000_000)
        first = train(where / "model", data, where / f"run-{size}", cache, learners)
        second = train(where / "model", data, where / f"run-{size}-again", cache, learners)
        table = json.loads((where / f"run-{size}" / "data.json").read_text())
        kept = sum(path.stat().st_size for path in (cache / "isthmus" / "tokens").glob("*.tokens"))
        found.append(
            {"megabytes": size, "tokens": table["tokens"], "kept_bytes": kept, **first}
            | {"again": second["seconds"], "again_tokenized": second["tokenized"], "again_by_role": second["by_role"]}
        )
        data.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[250, 1000])
    parser.add_argument("--form", choices=("jsonl", "txt"), default="jsonl", help="rows, or one document")
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        found = measured(asked.megabytes, asked.form, asked.learners, Path(where))
    least, most = found[0], found[-1]
    grown = {role: size - least["by_role"].get(role, 0) for role, size in most["by_role"].items()}
    figures = {"runs": found, "grown_by_role": grown, "grown_together": most["together"] - least["together"]}
    if asked.json:
        print(json.dumps(figures, indent=2))
        return
    for run in found:
        roles = ", ".join(f"{role} {size / 1e6:.0f}" for role, size in run["by_role"].items())
        print(f"{run['megabytes']} MB, {run['tokens']:,} tokens: tokenized {run['tokenized']} times, then "
              f"{run['again_tokenized']}; {run['seconds']} s, then {run['again']} s")  # fmt: skip
        print(f"  most of RssAnon, MB: {roles}; together {run['together'] / 1e6:.0f}")
    print("grown, MB: " + ", ".join(f"{role} {size / 1e6:+.0f}" for role, size in grown.items()))


if __name__ == "__main__":
    main()
