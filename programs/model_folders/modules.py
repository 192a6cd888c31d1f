"""Model folders in PyTorch: every architecture that `AutoModelForCausalLM` of transformers knows, computed by it.

Decides which folders are read so, how their modules are made and written, and what their losses are. Importing this
module imports no framework. No code of a folder's own is run, nothing is unpickled, and a folder whose tensors are not
those of its architecture is refused: transformers would make up the rest.

Leaves of a module have its own names, which are those of the folder as far as transformers does not rename them; a
folder is written by transformers, which renames them back.
"""

from __future__ import annotations

import copy
import logging
import queue
import threading
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from isthmus.programs.model_folders import folders, llama
from isthmus.runtime.errors import ConfigError, Fault, nearest, shortened

_MESSAGE_MAX: Final = 1000


@final
@dataclass(frozen=True, slots=True)
class ModuleFolder:
    """What a config.json says to transformers.

    `config`: its configuration there; `path`: the folder, which may have no tensors.
    """

    path: Path
    document: Mapping[str, Any]
    config: Any

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return int(self._text.vocab_size)

    @property
    def width(self) -> int:
        """The width of the model."""
        return int(getattr(self._text, "hidden_size", 0) or 1)

    @property
    def context(self) -> int | None:
        """The most tokens of a sequence; None where nothing bounds them."""
        most = getattr(self._text, "max_position_embeddings", None)
        return most if isinstance(most, int) and most > 0 else None

    @property
    def _text(self) -> Any:
        return self.config.get_text_config()

    def embeddings(self, doing: str) -> list[str]:
        """The paths of the embeddings of the module, its head among them: tensors with a row for each token or
        place."""
        import torch

        with explained(doing, f"a model of {self.config.model_type}"):
            module = self.empty(torch.device("meta"))
        head = module.get_output_embeddings()
        names = {id(each): name.replace(".", "/") for name, each in module.named_parameters()}
        tables = [each for each in module.modules() if isinstance(each, torch.nn.Embedding)]
        found = (names.get(id(each.weight)) for each in [*tables, *([] if head is None else [head])])
        return [*dict.fromkeys(name for name in found if name is not None)]

    def dtype(self, doing: str) -> str:
        """The dtype of the tensors: that of all, float32 if they differ. ConfigError for files that are not whole, and
        for numbers of other kinds."""
        kinds = set(self._dtypes(doing).values())
        return kinds.pop() if len(kinds) == 1 else "float32"

    def _dtypes(self, doing: str) -> dict[str, str]:
        """The dtype of every tensor that the folder's files have, but of buffers that are no such numbers."""
        found = dict(_dtypes_in(self.path, doing))
        if others := {name: kind for name, kind in found.items() if kind not in folders.DTYPES}:
            import torch

            with explained(doing, f"a model of {self.config.model_type}"):
                parameters = [name for name, _ in self.empty(torch.device("meta")).named_parameters()]
            for name, kind in others.items():
                # Of a module, or of the model within it: either name may have a prefix that the other has not.
                if any(f".{each}".endswith(f".{name}") or f".{name}".endswith(f".{each}") for each in parameters):
                    do = "Take the folder in one of these; quantized models are not read."
                    raise ConfigError(doing, f"tensor {name} of {', '.join(folders.DTYPES.values())}", kind, do)
        return {name: folders.DTYPES[kind] for name, kind in found.items() if kind in folders.DTYPES}

    def load(self, dtype: str, doing: str, *, eager: bool = False) -> Any:
        """The module with the tensors of the folder, in one dtype; ConfigError unless these are all of it, and no more.

        `eager`: attention is computed as it is written, and not by one fused operation.
        """
        self._dtypes(doing)
        if getattr(self.config, "tie_word_embeddings", False):
            folders.check_tied(self.path, doing)
        import torch
        from transformers import AutoModelForCausalLM

        how = {"attn_implementation": "eager"} if eager else {}
        with quiet(), explained(doing, f"a model of {self.config.model_type}, as transformers writes it"):
            module, found = AutoModelForCausalLM.from_pretrained(
                str(self.path),
                config=copy.deepcopy(self.config),
                dtype=getattr(torch, dtype),
                output_loading_info=True,
                trust_remote_code=False,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                **how,
            )
        if faults := list(_loading_faults(found, self.document, doing)):
            raise ConfigError.of(faults)
        return module

    def empty(self, device: Any, dtype: str = "float32") -> Any:
        """The module without values, in a dtype: so are the constants that it computes as it is made."""
        import torch
        from transformers import AutoModelForCausalLM

        how = {"dtype": getattr(torch, dtype), "trust_remote_code": False}
        with quiet(), device:
            return AutoModelForCausalLM.from_config(copy.deepcopy(self.config), **how)

    def widened(self, module: Any) -> Any:
        """A module of this folder in float32, also by peft around it, with constants as they are in float32."""
        import torch

        module = module.float()
        fresh = dict(self.empty(torch.device("cpu")).named_buffers())
        saved = module.state_dict()
        for name, buffer in module.named_buffers():
            if name not in saved and name in fresh:
                buffer.copy_(fresh[name])
        return module

    def with_tensors(self, tensors: Mapping[str, npt.NDArray[Any]], dtype: str, doing: str) -> Any:
        """The module with tensors by their paths in it, in one dtype; ConfigError unless these are its tensors."""
        import torch

        with explained(doing, f"a model of {self.config.model_type}"):
            module = self.empty(torch.device("cpu"), dtype).to(getattr(torch, dtype))
        places = {name.replace(".", "/"): each for name, each in _saved(module)}
        if odd := sorted(places.keys() ^ tensors.keys()):
            do = "Use the version of transformers with which the model was trained."
            raise ConfigError(doing, f"the tensors of {type(module).__name__}", f"another {odd[0]!r}", do)
        with torch.no_grad():
            for path, place in places.items():
                place.copy_(torch.from_numpy(np.array(tensors[path], np.float32)).reshape(place.shape))
        return module.eval()


def read(path: Path, doing: str) -> ModuleFolder:
    """The folder at a path, of which no tensor is read yet.

    ConfigError for an architecture that transformers does not know, with code of its own, quantized, or with another
    head than one that predicts tokens; and where transformers is missing.
    """
    document = folders.document_in(path, doing)
    if document.get("quantization_config") is not None:
        do = "Take the folder in float32, bfloat16 or float16."
        raise ConfigError(doing, "tensors of floating-point numbers", "quantization_config", do)
    known = _known(document, doing)
    kind = document.get("model_type")
    architecture = known.get(kind) if isinstance(kind, str) else None
    llama.check_code(document, doing, architecture)
    llama.check_positions(document, doing)
    if architecture is None:
        here = ", ".join(f"{name} ({each.architecture})" for name, each in llama.FAMILIES.items())
        do = f"{nearest(kind if isinstance(kind, str) else '', known)} {_version()} knows {len(known)} of them."
        expected = f"a model_type of {here}, or of AutoModelForCausalLM of transformers"
        raise ConfigError(doing, expected, shortened(repr(kind), 80), do.strip())
    names = document.get("architectures")
    if isinstance(names, list) and names and architecture not in names:
        do = "Save the model as AutoModelForCausalLM.from_pretrained(...) makes it."
        raise ConfigError(
            doing, f"architectures [{architecture!r}], which predicts tokens", shortened(repr(names), 200), do
        )
    from transformers import AutoConfig

    with quiet(), explained(doing, f"a configuration of {kind}"):
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    found = ModuleFolder(path, document, config)
    with explained(doing, f"a configuration of {kind} with vocab_size"):
        _ = found.vocabulary
    return found


def _known(document: Mapping[str, Any], doing: str) -> Mapping[str, str]:
    """The architectures of AutoModelForCausalLM, by `model_type`; ConfigError where transformers is missing."""
    try:
        import torch  # noqa: F401
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError as error:
        here = ", ".join(llama.FAMILIES)
        do = f"Install it beside isthmus: pip install torch transformers. Without it there are {here}."
        found = f"model_type {shortened(str(document.get('model_type')), 80)!r}, and no {error.name}"
        raise ConfigError(doing, "transformers and PyTorch, for this architecture", found, do) from None
    known: Mapping[str, str] = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return known


def _version() -> str:
    import transformers

    return f"transformers {transformers.__version__}"


def _dtypes_in(path: Path, doing: str) -> Iterator[tuple[str, str]]:
    """The name of every tensor, and its dtype in the words of safetensors; ConfigError for files that are not whole."""
    for file in folders.weight_files(path, doing):
        with folders.opened_tensors(file, doing) as opened:
            yield from ((name, opened.get_slice(name).get_dtype()) for name in opened.keys())  # noqa: SIM118


def _loading_faults(found: Mapping[str, Any], document: Mapping[str, Any], doing: str) -> Iterator[Fault]:
    """What was missing, too much, or of another shape."""
    do = "Take the folder again from where it is whole."
    if missing := sorted(found["missing_keys"]):
        yield Fault(doing, f"tensors {folders.listed(missing)}", "files without them", do)
    if odd := sorted(found["mismatched_keys"]):
        name, here, there = odd[0] if isinstance(odd[0], tuple) else (odd[0], "another", "its own")
        expected = f"tensor {name} of shape {list(there)}, as {folders.CONFIG} says"
        yield Fault(doing, expected, str(list(here)), "Correct config.json, or take the folder from where it is whole.")
    if more := sorted(found["unexpected_keys"]):
        do = "Take a folder of this architecture: what these tensors do is not known here."
        yield Fault(doing, f"tensors of {document['model_type']}", folders.listed(more), do)


def _saved(module: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of each parameter, and of each buffer that is saved and floating-point: tied ones once."""
    yield from module.named_parameters()
    saved = module.state_dict()
    for name, buffer in module.named_buffers():
        if name in saved and buffer.dtype.is_floating_point:
            yield name, buffer


def write(module: Any, folder: Path) -> None:
    """Write a module as transformers does, into a folder that exists. OSError of the disk."""
    with quiet():
        module.save_pretrained(str(folder), max_shard_size=folders.SHARD_BYTES_MAX)


def token_losses(module: Any, tokens: Any, dtype: str) -> Any:
    """The cross-entropy, in nats, of each of `tokens` int[sequences, length + 1] but the first of each sequence:
    float32[sequences, length], computed in `dtype`."""
    import torch

    tokens = tokens.long()
    scores = _logits(module, tokens[:, :-1], dtype).float()
    losses = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return losses.view(tokens.shape[0], -1)


def _logits(module: Any, tokens: Any, dtype: str) -> Any:
    import torch

    own = next(module.parameters()).dtype
    computed = getattr(torch, dtype)
    given = {"input_ids": tokens, "use_cache": False}
    if own == computed:
        return module(**given).logits
    if computed == torch.bfloat16:
        with torch.autocast(tokens.device.type, computed):
            return module(**given).logits
    tensors = {name: each.to(computed) for name, each in _saved(module)}
    return torch.func.functional_call(module, tensors, kwargs=given).logits


def generated(
    module: Any, ids: Any, count: int, temperature: float, ends: tuple[int, ...]
) -> Generator[int, None, None]:
    """Up to `count` tokens after `ids` int64[1, length], each as it is written, at most one of `ends` as the last; at a
    temperature of 0 each is the most likely one. Nothing else that a folder says of sampling counts.

    `generate` calls back with each token, so it runs in a thread, which ends with this iterator.
    """
    import torch
    from transformers import GenerationConfig
    from transformers.generation import BaseStreamer, StoppingCriteriaList

    written: queue.SimpleQueue[Any] = queue.SimpleQueue()
    is_over = threading.Event()

    class Written(BaseStreamer):  # type: ignore[misc]
        def put(self, value: Any) -> None:
            written.put(value.flatten().tolist())

        def end(self) -> None:
            written.put(None)

    def stops(sequences: Any, _scores: Any, **_: Any) -> Any:
        return torch.full((sequences.shape[0],), is_over.is_set(), dtype=torch.bool)

    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
    module.generation_config = GenerationConfig()
    how = GenerationConfig(
        max_new_tokens=count, eos_token_id=list(ends) or None, pad_token_id=ends[0] if ends else 0, **drawn
    )

    def write() -> None:
        try:
            with quiet(), torch.no_grad():
                given = {"attention_mask": torch.ones_like(ids), "streamer": Written()}
                module.generate(ids, **given, generation_config=how, stopping_criteria=StoppingCriteriaList([stops]))
        except BaseException as error:
            written.put(error)

    thread = threading.Thread(target=write, name="generate", daemon=True)
    thread.start()
    try:
        is_prompt = True
        while (found := written.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            if not is_prompt:
                yield from found
            is_prompt = False
    finally:
        is_over.set()
        thread.join()


@contextmanager
def quiet() -> Iterator[None]:
    """transformers without progress bars, advice and warnings: what matters is checked here."""
    import transformers

    logger = transformers.logging
    level, has_bar = logger.get_verbosity(), logger.is_progress_bar_enabled()
    logger.set_verbosity(logging.CRITICAL)
    logger.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.set_verbosity(level)
        if has_bar:
            logger.enable_progress_bar()


@contextmanager
def explained(doing: str, expected: str) -> Iterator[None]:
    """Turn exceptions of transformers, of whatever class, into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        message = shortened(
            " ".join(str(error).split()), _MESSAGE_MAX, "cut: load the folder in transformers to read all"
        )
        do = "Correct config.json, or take the folder from where it is whole."
        raise ConfigError(doing, expected, f"{type(error).__name__}: {message}", do) from error
