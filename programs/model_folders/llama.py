"""The Llama family: what a config.json says, and which tensor of a folder is which of `ops.transformer`.

Pure: documents, names, shapes and arrays in, the same out. Folders name matrices as [outputs, inputs], and multiply
`W @ x`; `ops.transformer` has [inputs, outputs], so matrices are transposed at this boundary, and nothing else is
changed. A key of a configuration that would change what is computed is understood or refused; all others, such as
dropout and names, are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, NamedTuple, final

import msgspec

from isthmus.ops.model_config import (
    ROTARY_BASE,
    BandScaling,
    LinearScaling,
    ModelConfig,
    Rotary,
    Scaling,
    YarnScaling,
)
from isthmus.ops.model_config import tensors as shapes_of
from isthmus.runtime.errors import ConfigError, shortened


class OtherModelError(ConfigError):
    """A configuration of a model that is not computed here; transformers may know it."""


ATTENTION: Final = ("query", "key", "value")
CAUSAL: Final = "AutoModelForCausalLM"
"""The key of a class that predicts tokens, in `auto_map`."""
_IN_TORCH: Final = "Set task.framework to torch, or leave it out: transformers computes what jax does not here."


@final
@dataclass(frozen=True, slots=True)
class LlamaFamily:
    """An architecture that `ops.transformer` computes, and what its configurations leave out."""

    architecture: str
    key_heads: int | None = None
    head_width: int | None = None
    biases: tuple[str, ...] = ()
    head_norms: bool = False
    window: int | None = None


FAMILIES: Final[Mapping[str, LlamaFamily]] = {
    "llama": LlamaFamily("LlamaForCausalLM"),
    "mistral": LlamaFamily("MistralForCausalLM", key_heads=8, window=4096),
    "qwen2": LlamaFamily("Qwen2ForCausalLM", key_heads=32, biases=ATTENTION),
    "qwen3": LlamaFamily("Qwen3ForCausalLM", key_heads=32, head_width=128, head_norms=True),
}
"""By `model_type`; the numbers are the defaults of transformers' classes, which a config.json may leave out."""

Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Layers = Annotated[int, msgspec.Meta(ge=1, le=1 << 12)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class RopeDocument(msgspec.Struct, frozen=True):
    """How rotary positions are scaled: `rope_scaling`, or since transformers 5 `rope_parameters`."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    factor: Positive = 1.0
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    original_max_position_embeddings: Count | None = None
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    partial_rotary_factor: float | None = None


class ConfigDocument(msgspec.Struct, frozen=True):
    """The keys of a config.json that say what is computed."""

    model_type: str
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Layers
    num_attention_heads: Count
    max_position_embeddings: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    hidden_act: str = "silu"
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive | None = None
    rope_scaling: RopeDocument | None = None
    rope_parameters: RopeDocument | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Count | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    partial_rotary_factor: float | None = None
    architectures: list[str] | None = None
    auto_map: Any = None
    quantization_config: Any = None


def config_of(document: Mapping[str, Any], doing: str) -> ModelConfig:
    """The model that a config.json describes, computed in float32.

    OtherModelError for an architecture that is not known here, with the known ones, and for whatever would be computed
    otherwise; ConfigError for code of its own, and for what is no such configuration.
    """
    kind = document.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        known = ", ".join(f"{name} ({each.architecture})" for name, each in FAMILIES.items())
        raise OtherModelError(doing, f"a model_type of {known}", shortened(repr(kind), 80), _IN_TORCH)
    check_code(document, doing, family.architecture)
    check_positions(document, doing)
    try:
        given = msgspec.convert(document, ConfigDocument)
        return _config(given, family, doing)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        do = "Correct config.json, or take the folder from where it is whole."
        raise ConfigError(doing, f"a configuration of {family.architecture}", str(error), do) from None


def check_code(document: Mapping[str, Any], doing: str, architecture: str | None = None) -> None:
    """ConfigError for a configuration with code of its own, unless that is of the class `architecture`, which
    transformers has itself by now: there, too, the folder's own code is not run then."""
    found = document.get("auto_map")
    named = found.get(CAUSAL) if isinstance(found, dict) else found
    if found and (architecture is None or not isinstance(named, str) or named.rpartition(".")[2] != architecture):
        do = "Code of a folder's own is never run here. Take a folder that transformers' own classes have written."
        raise ConfigError(doing, "a model that transformers itself knows", "code of its own (auto_map)", do)


def check_positions(document: Mapping[str, Any], doing: str) -> None:
    """ConfigError for a configuration that says in two ways how positions are scaled, each another."""
    base, old, new = (document.get(key) for key in ("rope_theta", "rope_scaling", "rope_parameters"))
    both = [{"rope_theta": base, **each} if isinstance(each, dict) else each for each in (old, new)]
    if old and new and both[0] != both[1]:
        do = "Leave one of them out of config.json: rope_scaling is of folders of transformers 4."
        raise ConfigError(doing, "rope_scaling and rope_parameters that are equal, or one of them", "two others", do)


def is_computed_here(document: Mapping[str, Any]) -> bool:
    """Whether a configuration is of a model that `ops.transformer` computes, or would be if it were valid."""
    try:
        config_of(document, "Reading a configuration")
    except OtherModelError:
        return False
    except ConfigError:
        return True
    return True


def _config(given: ConfigDocument, family: LlamaFamily, doing: str) -> ModelConfig:
    wrong = {
        f"architectures {given.architectures}": given.architectures not in (None, [], [family.architecture]),
        "quantization_config": given.quantization_config is not None,
    }
    if found := [what for what, is_there in wrong.items() if is_there]:
        do = "Take a folder without: it is no model that predicts tokens, in floating-point numbers."
        raise ConfigError(doing, f"{family.architecture}, unquantized", ", ".join(found), do)
    refused = {
        f"hidden_act {given.hidden_act!r}": given.hidden_act not in ("silu", "swish"),
        "use_sliding_window": given.use_sliding_window and given.model_type != "mistral",
        f"partial_rotary_factor {given.partial_rotary_factor}": given.partial_rotary_factor not in (None, 1.0),
    }
    if found := [what for what, is_there in refused.items() if is_there]:
        raise OtherModelError(doing, f"{family.architecture} with silu", ", ".join(found), _IN_TORCH)
    window = given.sliding_window if given.model_type == "mistral" else None
    biases = [*family.biases]
    if given.attention_bias and not biases:
        biases += [*ATTENTION, "output"]
    biases += ["gate", "up", "down"] if given.mlp_bias else []
    return ModelConfig(
        vocabulary=given.vocab_size,
        layers=given.num_hidden_layers,
        width=given.hidden_size,
        heads=given.num_attention_heads,
        context=given.max_position_embeddings,
        hidden=given.intermediate_size,
        tied=given.tie_word_embeddings,
        shared_heads=given.num_key_value_heads or family.key_heads,
        head_width=given.head_dim or family.head_width,
        head_norms=family.head_norms,
        biases=tuple(biases),
        window=family.window if window is msgspec.UNSET else window,
        epsilon=given.rms_norm_eps,
        rotary=_rotary(given, doing),
    )


def _rotary(given: ConfigDocument, doing: str) -> Rotary:
    rope = given.rope_parameters or given.rope_scaling or RopeDocument()
    base = rope.rope_theta or given.rope_theta or ROTARY_BASE
    kind = rope.rope_type or rope.type or "default"
    scalings: dict[str, Any] = {
        "default": lambda: None,
        "linear": lambda: LinearScaling(rope.factor),
        "llama3": lambda: _bands(rope),
        "yarn": lambda: _yarn(rope, given),
    }
    if kind not in scalings or rope.partial_rotary_factor not in (None, 1.0):
        found = f"rope_type {kind!r}" if kind not in scalings else "partial_rotary_factor"
        raise OtherModelError(doing, f"rotary positions of {', '.join(scalings)}", found, _IN_TORCH)
    return Rotary(base, scalings[kind]())


def _bands(rope: RopeDocument) -> Scaling:
    if rope.original_max_position_embeddings is None or rope.high_freq_factor <= rope.low_freq_factor:
        raise ValueError("rope_scaling of type llama3 without original_max_position_embeddings, or with high <= low")
    return BandScaling(rope.factor, rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position_embeddings)


def _yarn(rope: RopeDocument, given: ConfigDocument) -> Scaling:
    def amplitude(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    factor = rope.attention_factor
    if factor is None and rope.mscale and rope.mscale_all_dim:
        factor = amplitude(rope.mscale) / amplitude(rope.mscale_all_dim)
    return YarnScaling(
        rope.factor,
        rope.original_max_position_embeddings or given.max_position_embeddings,
        amplitude(1.0) if factor is None else factor,
        rope.beta_fast or 32.0,
        rope.beta_slow or 1.0,
        rope.truncate,
    )


def document_of(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """The config.json of a model of the shipped task; ValueError for one with experts, which has no such form.

    There is no token for the beginning or the end of a text.
    """
    if config.routing is not None:
        raise ValueError("a model with experts is no Llama")
    return {
        "architectures": [FAMILIES["llama"].architecture],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "hidden_size": config.width,
        "intermediate_size": config.hidden_width,
        "max_position_embeddings": config.context,
        "mlp_bias": False,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.key_heads,
        "pad_token_id": None,
        "rms_norm_eps": config.epsilon,
        "rope_theta": config.rotary.base,
        "tie_word_embeddings": config.tied,
        "torch_dtype": dtype,
        "vocab_size": config.vocabulary,
    }


def without_code(document: Mapping[str, Any]) -> dict[str, Any]:
    """A folder's own config.json, without the names of code that was beside it and does not go along."""
    return {key: value for key, value in document.items() if key != "auto_map"}


def with_dtype(document: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """A folder's own config.json, with the dtype of the tensors beside it."""
    key = "torch_dtype" if "torch_dtype" in document else "dtype"
    return {**document, key: dtype}


class TensorPlace(NamedTuple):
    """One tensor: its name and shape in a folder, and its name in `ops.transformer`."""

    theirs: str
    ours: str
    is_matrix: bool
    shape: tuple[int, ...]


_LAYER: Final[Mapping[str, str]] = {
    "attention/norm": "input_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "feedforward/norm": "post_attention_layernorm",
    "feedforward/gate": "mlp.gate_proj",
    "feedforward/up": "mlp.up_proj",
    "feedforward/down": "mlp.down_proj",
}
_REST: Final[Mapping[str, str]] = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}


def places(config: ModelConfig) -> Iterator[TensorPlace]:
    """Every tensor of a model, in the order of its forward pass; its layers are no rows of one tensor."""
    for name, (shape, _) in shapes_of(replace(config, stacked=False)).items():
        bare = name.removesuffix("_bias")
        suffix = "weight" if bare == name else "bias"
        if bare in _REST:
            place = _REST[bare]
        else:
            _, index, part = bare.split("/", 2)
            place = f"model.layers.{index}.{_LAYER[part]}"
        is_matrix = len(shape) == 2 and name != "embedding"
        yield TensorPlace(f"{place}.{suffix}", name, is_matrix, shape[::-1] if is_matrix else shape)


def ours(config: ModelConfig, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of `ops.transformer`, nested, from a folder's tensors by name: NumPy's arrays, or jax's."""
    params: dict[str, Any] = {}
    for place in places(config):
        *folders, leaf = place.ours.split("/")
        branch = params
        for folder in folders:
            branch = branch.setdefault(folder, {})
        tensor = tensors[place.theirs]
        branch[leaf] = tensor.T if place.is_matrix else tensor
    return params


def theirs(config: ModelConfig, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A folder's tensors by name, from those of `ops.transformer`, by their names there."""
    found: dict[str, Any] = {}
    for place in places(config):
        if config.stacked and place.ours.startswith("layers/"):
            _, index, part = place.ours.split("/", 2)
            tensor = tensors[f"layers/{part}"][int(index)]
        else:
            tensor = tensors[place.ours]
        found[place.theirs] = tensor.T if place.is_matrix else tensor
    return found


def nested(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of the tensors, by the steps of their paths."""
    tree: dict[str, Any] = {}
    for name, tensor in tensors.items():
        *steps, leaf = name.split("/")
        branch = tree
        for step in steps:
            branch = branch.setdefault(step, {})
        branch[leaf] = tensor
    return tree
