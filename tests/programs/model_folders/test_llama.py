"""What a config.json means, and which tensor of a folder is which of the transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops import transformer
from isthmus.ops.model_config import BandScaling, ModelConfig, Routing, YarnScaling
from isthmus.programs.model_folders import llama
from isthmus.runtime.errors import ConfigError

DOCUMENT = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


def config(**changes: Any) -> ModelConfig:
    return llama.config_of({**DOCUMENT, "architectures": None, **changes}, "Reading it")


def test_the_shipped_model_is_a_llama_again() -> None:
    for model in (ModelConfig(), ModelConfig(tied=True, width=32, heads=2, layers=3)):
        document = llama.document_of(model, "float32")
        read = llama.config_of(document, "Reading it")
        assert set(llama.places(read)) == set(llama.places(model))
        assert (read.epsilon, read.rotary, read.context) == (model.epsilon, model.rotary, model.context)
        assert (read.hidden_width, read.head_size) == (model.hidden_width, model.head_size)


def test_experts_have_no_such_form() -> None:
    with pytest.raises(ValueError, match="experts"):
        llama.document_of(ModelConfig(routing=Routing(4)), "float32")


@pytest.mark.parametrize("is_stacked", [False, True])
def test_tensors_are_transposed_once_in_each_direction(is_stacked: bool) -> None:
    model = ModelConfig(vocabulary=11, layers=3, width=8, heads=2, context=6, stacked=is_stacked)
    rng = np.random.default_rng(0)
    flat = {name: rng.normal(size=shape) for name, (shape, _) in transformer.tensors(model).items()}
    theirs = llama.theirs(model, flat)
    row = flat["layers/attention/query"][1] if is_stacked else flat["layers/1/attention/query"]
    np.testing.assert_array_equal(theirs["model.layers.1.self_attn.q_proj.weight"], row.T)
    np.testing.assert_array_equal(theirs["lm_head.weight"], flat["head"].T)
    np.testing.assert_array_equal(theirs["model.embed_tokens.weight"], flat["embedding"])
    assert [(name, tensor.shape) for name, tensor in theirs.items()] == [
        (place.theirs, place.shape) for place in llama.places(model)
    ]
    params = llama.ours(model, theirs)
    np.testing.assert_array_equal(params["layers"]["1"]["attention"]["query"], row)
    np.testing.assert_array_equal(params["head"], flat["head"])


def test_what_a_document_leaves_out_is_what_its_classes_have() -> None:
    assert config(model_type="mistral", num_attention_heads=8, head_dim=2).window == 4096
    assert config(model_type="mistral", num_attention_heads=8, head_dim=2, sliding_window=None).window is None
    assert config(model_type="qwen2", num_key_value_heads=1).biases == ("query", "key", "value")
    assert config(model_type="qwen3", num_key_value_heads=1).head_size == 128
    assert config(attention_bias=True, mlp_bias=True).biases[3:] == ("output", "gate", "up", "down")


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_both_forms_of_scaled_positions_are_read(key: str) -> None:
    bands = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    found = config(rope_theta=500.0, **{key: {"rope_type": "llama3", **bands}}).rotary
    assert (found.base, found.scaling) == (500.0, BandScaling(8.0, 1.0, 4.0, 16))
    yarn = config(**{key: {"type": "yarn", "factor": 4.0, "rope_theta": 700.0}}).rotary
    assert yarn.base == 700.0
    assert yarn.scaling == YarnScaling(4.0, 32, 0.1 * np.log(4.0) + 1.0)


def test_both_forms_may_say_the_same() -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    found = config(rope_theta=700.0, rope_scaling=linear, rope_parameters={**linear, "rope_theta": 700.0})
    assert found.rotary == config(rope_theta=700.0, rope_scaling=linear).rotary


def test_code_is_left_alone_where_its_class_is_known() -> None:
    code = {"AutoConfig": "configuration_llama.LlamaConfig", "AutoModelForCausalLM": "modeling.LlamaForCausalLM"}
    assert config(auto_map=code) == config()
    assert "auto_map" not in llama.without_code({**DOCUMENT, "auto_map": code})
    with pytest.raises(ConfigError, match="code of its own"):
        config(model_type="mistral", auto_map=code)
    with pytest.raises(ConfigError, match="code of its own"):
        config(auto_map={"AutoConfig": "configuration_llama.LlamaConfig"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt2"}, "llama (LlamaForCausalLM), mistral"),
        ({"model_type": ["llama"]}, "llama (LlamaForCausalLM), mistral"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.py--Mine"}}, "code of its own"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "original_max_position_embeddings"),
        ({"rope_scaling": {"type": "yarn"}, "rope_parameters": {"type": "linear"}}, "rope_scaling and rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({"hidden_size": "8"}, "hidden_size"),
        ({"hidden_size": 9}, "heads of even size"),
        ({"num_key_value_heads": 3}, "evenly"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**changes)
    assert words in str(refused.value)
