"""Folders in, some steps by two islands, out, read by transformers: logits and greedy text are those of the run.

The Llama family is trained in jax, what our own transformer does not compute in PyTorch. All folders are in bfloat16,
and both sides compute in float32.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from isthmus import Program
from isthmus.ops import transformer
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.engine.request.task_checks import layout_of
from isthmus.programs.model_folders import folders
from isthmus.programs.model_folders.tokens import FolderTokens
from isthmus.programs.trained.export import export
from isthmus.programs.trained.jax_predictor import JaxPredictor
from isthmus.programs.trained.sample import Writer
from isthmus.programs.trained.text_model import text_model
from isthmus.programs.training import start
from isthmus.runtime.errors import ConfigError
from tests.effort import soaked
from tests.torch_tasks.folder_tokenizers import VOCABULARY, begins_by, byte_level, write
from tests.torch_tasks.test_model_folders import LARGEST, data_in, difference, task_of

pytestmark = [pytest.mark.torch]

DOING: Final = "Trying it"
PROMPT: Final = "7 times"
STEPS: Final = 20
"""Of each of two islands."""
COUNT: Final = 24
"""Tokens that are written."""
SIZES: Final[Mapping[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
LAYERS: Final = ["sliding_attention", "full_attention", "sliding_attention"]
LONGROPE: Final = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
FACTORS: Final = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 2.1, 2.2, 2.3]}
OTHERS: Final[Mapping[str, dict[str, Any]]] = {
    "gemma3_text": {
        "head_dim": 8,
        "sliding_window": 7,
        "layer_types": LAYERS,
        "query_pre_attn_scalar": 16,
        "final_logit_softcapping": 5.0,
        "attn_logit_softcapping": 4.0,
    },
    "phi3": {"sliding_window": 9, "original_max_position_embeddings": 16, "rope_parameters": {**LONGROPE, **FACTORS}},
    "olmo2": {},
    "gpt2": {},
    "smollm3": {"sliding_window": 9, "use_sliding_window": True, "no_rope_layers": [1, 0, 1]},
}
"""Architectures that our own transformer does not compute: with windows, caps of logits, scaled embeddings and
positions, layers without positions, and the transposed matrices of GPT-2."""


def folder_of(kind: str, to: Path, *, shard: str = "20KB", dtype: str = "bfloat16", **more: Any) -> Path:
    """A folder of a small random model with a tokenizer."""
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **OTHERS.get(kind, {}), **more})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * (0.1 if "emb" in name or "wte" in name else 0.2))
    model.to(getattr(torch, dtype)).save_pretrained(to, max_shard_size=shard)
    write(to, begins_by(byte_level()))
    return to


def trained(source: Path, here: Path, steps: int = STEPS, **settings: Any) -> Path:
    """The folder of a run of two islands."""
    given = {"folder": str(source), "data": [str(data_in(here)["jsonl"])], "context": 16, "batch": 4, **settings}
    run = {"learners": 2, "tokens": 2 * steps * 64}
    program = Program("decoupled-diloco", interval=4, fragments=2)
    start(prepare(program, None, run=run, task_settings=given, run_dir=here / "run").to_train().with_folder(), None)
    return here / "run"


def logits_here(where: Path, tokens: Any) -> Any:
    predictor = text_model(where, DOING).predictor
    if isinstance(predictor, JaxPredictor):
        return np.asarray(transformer.logits(predictor._config, predictor._params, tokens.numpy()))
    with torch.no_grad():
        return predictor._module(tokens).logits.numpy()  # type: ignore[attr-defined]


def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", attn_implementation="eager"
    ).eval()


def check_round_trip(source: Path, run: Path, to: Path) -> None:
    """The run, the folder exported from it and transformers' own reading of that are one model, and not the first."""
    export(run, to, "huggingface")
    tokens = torch.randint(0, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))
    model = loaded(to)
    with torch.no_grad():
        theirs, before = model(tokens).logits, loaded(source)(tokens).logits
    far = difference(logits_here(run, tokens), theirs)
    print(f"largest difference {far:.1e} of the largest logit; by the steps {difference(before, theirs):.1e}")
    assert far <= LARGEST
    assert difference(before, theirs) > 1e-2, "it has learned"
    tokenizer = transformers.AutoTokenizer.from_pretrained(to)
    prompt = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    ids = model.generate(prompt, max_new_tokens=COUNT, do_sample=False)[0].tolist()
    written = tokenizer.decode(ids[:-1] if ids[-1] == SIZES["eos_token_id"] else ids, skip_special_tokens=True)
    for where in (run, to):
        pieces = [*Writer(text_model(where, DOING), DOING).continuation(PROMPT.encode(), COUNT, temperature=0.0)]
        assert PROMPT + "".join(pieces) == written
    assert transformers.AutoModelForCausalLM.from_pretrained(to, dtype="auto").dtype == torch.bfloat16
    assert json.loads((to / "config.json").read_text()) == json.loads((source / "config.json").read_text())
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (to / name).read_bytes() == (source / name).read_bytes()


ONE, SHARDS = "5GB", "20KB"
ORDINARY = {("llama", False, ONE), ("qwen3", True, SHARDS)}
FAMILY = [
    row if row in ORDINARY else soaked(*row)
    for kind in ("llama", "mistral", "qwen2", "qwen3")
    for is_tied in (False, True)
    for shard in (ONE, SHARDS)
    for row in [(kind, is_tied, shard)]
]


@pytest.mark.parametrize(("kind", "is_tied", "shard"), FAMILY)
def test_a_folder_of_the_llama_family_goes_round(kind: str, is_tied: bool, shard: str, tmp_path: Path) -> None:
    source = folder_of(kind, tmp_path / "it", shard=shard, tie_word_embeddings=is_tied)
    assert (source / folders.INDEX).is_file() == (shard == SHARDS)
    assert isinstance(text_model(source, DOING).predictor, JaxPredictor)
    run = trained(source, tmp_path)
    check_round_trip(source, run, tmp_path / "out")


@pytest.mark.parametrize("kind", OTHERS)
def test_a_folder_of_another_architecture_goes_round(kind: str, tmp_path: Path) -> None:
    source = folder_of(kind, tmp_path / "it")
    run = trained(source, tmp_path)
    check_round_trip(source, run, tmp_path / "out")
    names = [
        {name for file in folders.weight_files(path, DOING) for name in load_file(file)}
        for path in (source, tmp_path / "out")
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize("kind", ["gemma3_text", "phi3"])
def test_an_adapted_folder_of_another_architecture_goes_round(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    source = folder_of(kind, tmp_path / "it")
    run = trained(source, tmp_path, lora_rank=2, lr=0.05)
    export(run, tmp_path / "out", "huggingface", dtype="float32", is_merged=True)
    tokens = torch.randint(0, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert difference(logits_here(run, tokens), loaded(tmp_path / "out")(tokens).logits) <= LARGEST


def test_a_folder_of_gpt_2_as_it_was_first_written_goes_round(tmp_path: Path) -> None:
    source = folder_of("gpt2", tmp_path / "it", shard=ONE)
    tensors = {name.removeprefix("transformer."): each for name, each in load_file(source / folders.WEIGHTS).items()}
    masks = {f"h.{layer}.attn.bias": torch.ones(64, 64, dtype=torch.uint8).tril()[None, None] for layer in range(3)}
    save_file({**tensors, **masks}, source / folders.WEIGHTS, {"format": "pt"})
    check_round_trip(source, trained(source, tmp_path), tmp_path / "out")
    assert "transformer.wte.weight" in load_file(tmp_path / "out" / folders.WEIGHTS)


@pytest.mark.parametrize("kind", OTHERS)
def test_what_jax_does_not_compute_is_refused_with_what_does(kind: str, tmp_path: Path) -> None:
    source, data = folder_of(kind, tmp_path / "it"), data_in(tmp_path)["txt"]
    with pytest.raises(ConfigError) as caught:
        task_of(source, data, framework="jax")
    (fault,) = caught.value.faults
    assert "task.framework" in fault.remedy
    assert "torch" in fault.remedy
    assert kind in fault.found
    task_of(source, data, framework="torch")


# -- what is beside the weights ----------------------------------------------------------------------------------------


GOES: Final = {
    "LICENSE": b"of the model",
    "README.md": b"of the model",
    "chat_template.jinja": b"{{ messages }}",
    "tokenizer.model": b"\x00\xff",
    "vocab.json": b"{}",
    "merges.txt": b"#version: 0.2\n",
    "special_tokens_map.json": b"{}",
    "generation_config.json": b'{"eos_token_id": [2, 5], "pad_token_id": 3, "temperature": 0.5, "top_p": 0.5}',
}
"""Beside a config.json, a tokenizer.json and its tokenizer_config.json. transformers does not write such generation."""
STAYS: Final = (
    "pytorch_model.bin",
    "optimizer.pt",
    "training_args.bin",
    "model.gguf",
    "trainer_state.json",
    "notes.txt",
)


def cached(kind: str, here: Path) -> Path:
    """A folder as the cache of a hub keeps it: links to blobs; and one that leads out of it."""
    snapshot, blobs = here / "models--a--b" / "snapshots" / "0123abcd", here / "models--a--b" / "blobs"
    folder_of(kind, snapshot)
    for name, data in {**GOES, **dict.fromkeys(STAYS, b"of others")}.items():
        (snapshot / name).write_bytes(data)
    blobs.mkdir()
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / f"{number:064}")
        file.symlink_to(f"../../blobs/{number:064}")
    (here / "key").write_bytes(b"secret")
    (snapshot / "NOTICE").symlink_to(here / "key")
    return snapshot


@pytest.mark.parametrize(
    ("kind", "settings", "is_merged"),
    [
        ("qwen3", {}, False),
        ("gpt2", {}, False),
        ("olmo2", {"lora_rank": 2}, False),
        ("olmo2", {"lora_rank": 2}, True),
    ],
)
def test_what_lies_beside_the_weights_in_a_cache_goes_along(
    kind: str, settings: dict[str, Any], is_merged: bool, tmp_path: Path
) -> None:
    if settings:
        pytest.importorskip("peft")
    source, to = cached(kind, tmp_path), tmp_path / "out"
    run = trained(source, tmp_path, steps=1, **settings)
    *_, note = export(run, to, "huggingface", is_merged=is_merged)
    assert "NOTICE" in note
    goes = {*GOES, "tokenizer.json", "tokenizer_config.json"}
    assert {name: (to / name).read_bytes() for name in goes} == {name: (source / name).read_bytes() for name in goes}
    assert not any(path.is_symlink() for path in to.iterdir())
    is_adapter = bool(settings) and not is_merged
    weights = {folders.ADAPTER, "adapter_model.safetensors"} if is_adapter else {folders.CONFIG, folders.WEIGHTS}
    assert {path.name for path in to.iterdir()} == goes | weights
    if is_adapter:
        with pytest.raises(ConfigError) as caught:
            text_model(to, DOING)
        assert folders.ADAPTER in caught.value.faults[0].found
    else:
        assert loaded(to).generation_config.eos_token_id == [2, 5]


# -- writing -----------------------------------------------------------------------------------------------------------


def test_a_text_comes_as_it_is_written(tmp_path: Path) -> None:
    predictor = text_model(folder_of("gpt2", tmp_path / "it"), DOING).predictor
    steps = threading.Semaphore(1)
    begun: list[int] = []

    def step(*_: Any) -> None:
        begun.append(1)
        steps.acquire()

    predictor._module.register_forward_pre_hook(step)  # type: ignore[attr-defined]
    prompt = np.arange(10, 15, dtype=np.int32)
    whole = predictor.continued(prompt, 20, 0.0, 0)
    first = next(whole)  # While the second step waits.
    assert len(begun) <= 2
    steps.release(20)
    ids = [first, *whole]
    assert sum(map(len, ids)) == 20
    del begun[:]
    part = predictor.continued(prompt, 20, 0.0, 0)
    assert next(part).tolist() == first.tolist()
    steps.release(1)
    part.close()
    assert len(begun) < 20, "nothing is written that nobody reads"
    assert not [thread for thread in threading.enumerate() if thread.name == "generate"]


def test_what_fails_while_it_is_written_is_raised(tmp_path: Path) -> None:
    predictor = text_model(folder_of("gpt2", tmp_path / "it"), DOING).predictor

    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    predictor._module.register_forward_pre_hook(fail)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="no memory"):
        next(predictor.continued(np.arange(3, dtype=np.int32), 4, 0.0, 0))


@pytest.mark.parametrize("kind", ["llama", "olmo2"])
@pytest.mark.parametrize("generation", [None, {}, {"eos_token_id": [400, "it"]}])
def test_a_text_ends_where_generate_ends_it(kind: str, generation: Any, tmp_path: Path) -> None:
    source = folder_of(kind, tmp_path / "it")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    prompt = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**document, "eos_token_id": None}))
    (source / "generation_config.json").unlink()
    ids = loaded(source).generate(prompt, max_new_tokens=12, do_sample=False)[0].tolist()
    assert len(ids) == prompt.shape[1] + 12
    stop = ids[prompt.shape[1] + 3]
    del document["eos_token_id"]  # By default the class has one, which does not count.
    (source / "config.json").write_text(json.dumps(document))
    if generation is not None:
        (source / "generation_config.json").write_text(json.dumps(generation).replace('"it"', str(stop)))
    model = loaded(source)
    assert text_model(source, DOING).predictor._ends == ends_of(model)  # type: ignore[attr-defined]
    ids = model.generate(prompt, max_new_tokens=12, do_sample=False)[0].tolist()
    assert (ids[-1] == stop) == bool(generation)
    theirs = tokenizer.decode(ids[:-1] if ids[-1] in ends_of(model) else ids, skip_special_tokens=True)
    pieces = Writer(text_model(source, DOING), DOING).continuation(PROMPT.encode(), 12, temperature=0.0)
    assert PROMPT + "".join(pieces) == theirs


def ends_of(model: Any) -> tuple[int, ...]:
    ends = model.generation_config.eos_token_id
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)


# -- odd folders -------------------------------------------------------------------------------------------------------


def document_with(folder: Path, **changes: Any) -> None:
    document = json.loads((folder / folders.CONFIG).read_text())
    (folder / folders.CONFIG).write_text(json.dumps({**document, **changes}))


def index_with(folder: Path, name: str) -> None:
    index = json.loads((folder / folders.INDEX).read_text())
    first = next(iter(index["weight_map"]))
    (folder / folders.INDEX).write_text(json.dumps({**index, "weight_map": {**index["weight_map"], first: name}}))


def first_shard(folder: Path) -> Path:
    return min(folder.glob("model-*.safetensors"))


def with_dtype(folder: Path, dtype: torch.dtype) -> None:
    tensors = load_file(first_shard(folder))
    name = next(name for name, each in tensors.items() if each.ndim > 1)
    save_file({**tensors, name: tensors[name].to(dtype)}, first_shard(folder), {"format": "pt"})


ODD: Final[Mapping[str, tuple[Callable[[Path], Any], str]]] = {
    "no model_type": (lambda it: document_with(it, model_type=None), "model_type"),
    "another model_type": (lambda it: document_with(it, model_type="olmo"), "architectures"),
    "more layers": (lambda it: document_with(it, num_hidden_layers=4), "tensors"),
    "wider": (lambda it: document_with(it, intermediate_size=64), "as config.json says"),
    "no architectures": (lambda it: document_with(it, architectures=None, model_type="gemma"), "tensor"),
    "tied, with a head": (lambda it: document_with(it, tie_word_embeddings=True), "tie_word_embeddings"),
    "heads that do not divide": (lambda it: document_with(it, num_attention_heads=3), ""),
    "positions in two ways": (
        lambda it: document_with(
            it,
            rope_scaling={"rope_type": "linear", "factor": 2.0},
            rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        ),
        "rope_scaling and rope_parameters",
    ),
    "a shard less": (lambda it: first_shard(it).unlink(), "which model.safetensors.index.json names"),
    "an index to outside": (lambda it: index_with(it, "../other.safetensors"), "names of safetensors files"),
    "an index to elsewhere": (lambda it: index_with(it, "/etc/passwd"), "names of safetensors files"),
    "integers": (lambda it: with_dtype(it, torch.int8), "of float32, float16, bfloat16"),
    "eight bits": (lambda it: with_dtype(it, torch.float8_e4m3fn), "of float32, float16, bfloat16"),
    "sixty-four bits": (lambda it: with_dtype(it, torch.float64), "of float32, float16, bfloat16"),
    "code of its own": (
        lambda it: document_with(it, auto_map={"AutoModelForCausalLM": "modeling_mine.MineForCausalLM"}),
        "transformers itself knows",
    ),
    "an adapter": (
        lambda it: (it / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(it.parent)})),
        "a model folder",
    ),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", ["olmo2", "qwen2"])
def test_an_odd_folder_is_refused_by_name(kind: str, name: str, tmp_path: Path) -> None:
    source, data = folder_of(kind, tmp_path / "it"), data_in(tmp_path)["txt"]
    (tmp_path / "other.safetensors").write_bytes(first_shard(source).read_bytes())
    spoil, expected = ODD[name]
    spoil(source)
    for doing in (lambda: text_model(source, DOING), lambda: layout_of(task_of(source, data), 0)):
        with pytest.raises(ConfigError) as caught:
            doing()
        assert expected in caught.value.faults[0].expected


def test_code_that_transformers_has_by_now_is_not_run(tmp_path: Path) -> None:
    source, expected = (folder_of("phi3", tmp_path / name) for name in ("it", "other"))
    names = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    document_with(source, auto_map=names)
    (source / "configuration_phi3.py").write_text("raise SystemExit(3)")
    (source / "modeling_phi3.py").write_text("raise SystemExit(3)")
    tokens = torch.arange(20)[None]
    np.testing.assert_array_equal(logits_here(source, tokens), logits_here(expected, tokens))
    export(trained(source, tmp_path, steps=1), tmp_path / "out", "huggingface")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == json.loads(
        (expected / "config.json").read_text()
    )
    assert not [*(tmp_path / "out").glob("*.py")]


def test_pads_are_those_of_generation(tmp_path: Path) -> None:
    folder = write(tmp_path / "it", byte_level())
    found = []
    for generation in ({}, {"pad_token_id": 5}, {"pad_token_id": [4, 5]}):
        (folder / "generation_config.json").write_text(json.dumps(generation))
        document_with(folder, pad_token_id=0)
        found.append(FolderTokens(folder, VOCABULARY, DOING).pad)
    document_with(folder, pad_token_id=None)
    (folder / "generation_config.json").unlink()
    assert [*found, FolderTokens(folder, VOCABULARY, DOING).pad] == [0, 5, 4, 3]
