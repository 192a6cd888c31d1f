"""What a language model says of a text, and writes, against its forward pass alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from isthmus.ops import transformer
from isthmus.ops.model_config import ModelConfig
from isthmus.programs.model_folders.tokens import ByteTokens
from isthmus.programs.trained.evaluate import TextLoss, evaluate
from isthmus.programs.trained.jax_predictor import JaxPredictor
from isthmus.programs.trained.sample import Writer
from isthmus.programs.trained.text_model import TextModel, text_model
from isthmus.runtime.errors import ConfigError

CONFIG = ModelConfig(vocabulary=256, layers=1, width=8, heads=2, context=10)
DOING = "Trying it"
BYTES = ByteTokens()


def parameters(scale: float = 0.5) -> Any:
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda leaf: (rng.normal(size=leaf.shape) * scale).astype(np.float32),
        jax.eval_shape(lambda: transformer.init(CONFIG, jax.random.key(0))),
    )


def model(tokens: Any = BYTES, ends: tuple[int, ...] = (), scale: float = 0.5) -> TextModel:
    predictor = JaxPredictor(CONFIG, parameters(scale), ends)
    return TextModel(Path("it"), predictor, CONFIG.vocabulary, CONFIG.context, tokens)


@pytest.mark.slow
def test_a_model_that_knows_nothing_needs_eight_bits_a_byte(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(256)))
    found = evaluate(model(scale=0.0), tmp_path / "text", DOING)
    assert (found.tokens, found.windows) == (255, 26)
    assert found.loss == pytest.approx(math.log(256), abs=1e-6)
    assert found.bits_per_byte == pytest.approx(8.0, abs=1e-6)
    assert found.perplexity == pytest.approx(256.0, rel=1e-6)


@pytest.mark.slow
def test_every_token_but_the_first_is_predicted_once(tmp_path: Path) -> None:
    text = np.random.default_rng(0).integers(0, 256, 34).astype(np.uint8)
    for name, part in (("a", text[:20]), ("b", text[20:])):
        (tmp_path / name).write_bytes(part.tobytes())
    it = model()
    losses = []
    for start in range(0, 33, 10):
        window = text[start : start + 11].astype(np.int32)[None]
        scores = np.asarray(transformer.logits(CONFIG, parameters(), window[:, :-1]), np.float64)[0]
        losses += [np.log(np.exp(row).sum()) - row[right] for row, right in zip(scores, window[0, 1:], strict=True)]
    found = evaluate(it, tmp_path, DOING)
    assert (found.tokens, found.windows) == (33, 4)
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-5)


def in_all(found: TextLoss) -> TextLoss:
    return found._replace(files=())


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [BYTES, None])
def test_losses_of_files_add_up_and_each_text_is_measured_by_itself(tmp_path: Path, tokens: Any) -> None:
    (tmp_path / "folder").mkdir()
    suffix = "" if tokens else ".npy"
    for number, name in enumerate(("folder/a", "folder/b", "c")):
        text = np.random.default_rng(number).integers(0, 256, 17 + 9 * number).astype(np.uint8)
        if tokens:
            (tmp_path / name).write_bytes(text.tobytes())
        else:
            np.save(tmp_path / f"{name}.npy", text)
    it, folder, other = model(tokens), tmp_path / "folder", tmp_path / f"c{suffix}"
    first, second, both = (evaluate(it, data, DOING) for data in (folder, other, [folder, other]))
    assert [(Path(each.path).stem, each.data, each.tokens) for each in both.files] == [
        ("a", str(folder), 16),  # Nothing predicts its first token.
        ("b", str(folder), 26),
        ("c", str(other), 34),
    ]
    assert both.files == first.files + second.files
    assert (both.tokens, both.windows) == (first.tokens + second.tokens, first.windows + second.windows)
    losses = [each.loss * each.tokens for each in both.files if each.loss is not None]
    assert sum(losses) == pytest.approx(both.loss * both.tokens, rel=1e-9)
    assert both.loss * both.tokens == pytest.approx(first.loss * 42 + second.loss * 34, rel=1e-9)
    for each in both.files:
        assert each.loss is not None
        assert each.bits_per_byte == (pytest.approx(each.loss / math.log(2)) if tokens else None)
    with pytest.raises(ConfigError, match="each file once"):
        evaluate(it, [folder, folder / f"a{suffix}"], DOING)


@pytest.mark.slow
def test_a_file_of_which_nothing_is_predicted_has_no_loss(tmp_path: Path) -> None:
    for name, text in (("a", b"x"), ("b", b"yz")):
        (tmp_path / name).write_bytes(text)
    found = evaluate(model(), tmp_path, DOING)
    assert [(each.loss is None, each.bits_per_byte is None, each.tokens) for each in found.files] == [
        (True, True, 0),
        (False, False, 2),
    ]


def written(it: TextModel, prompt: bytes, count: int, **more: Any) -> str:
    return "".join(Writer(it, DOING).continuation(prompt, count, **more))


@pytest.mark.slow
def test_the_most_likely_tokens_are_those_of_the_forward_pass() -> None:
    it = model()
    logits = jax.jit(transformer.logits, static_argnums=0)
    ids = [1, 2, 3]
    for _ in range(23):
        # Beyond its context the model reads the last half of it again.
        recent = ids if len(ids) < 10 else ids[-5 - (len(ids) - 10) % 5 :]
        scores = logits(CONFIG, parameters(), np.array([recent + [0] * (10 - len(recent))]))
        ids.append(int(np.argmax(scores[0, len(recent) - 1])))
    expected = bytes(ids[3:]).decode(errors="replace")
    assert written(it, bytes([1, 2, 3]), 23, temperature=0.0) == expected


@pytest.mark.slow
def test_what_is_drawn_follows_the_seed_and_ends_with_the_text() -> None:
    one, same, other = (written(model(scale=0.1), b"a", 40, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    every = tuple(range(256))
    assert written(model(ends=every), b"a", 40) == ""


def test_what_cannot_be_written_or_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="with a tokenizer"):
        written(model(tokens=None), b"a", 1)
    with pytest.raises(ConfigError, match="at least one token"):
        written(model(), b"", 1)
    with pytest.raises(ConfigError, match="has none"):
        evaluate(model(), None, DOING)
    (tmp_path / "short").write_bytes(b"a")
    with pytest.raises(ConfigError, match="at least two tokens"):
        evaluate(model(), tmp_path / "short", DOING)
    with pytest.raises(ConfigError, match="nothing there"):
        text_model(tmp_path / "none", DOING)
    with pytest.raises(ConfigError, match=r"neither config\.toml nor config\.json"):
        text_model(tmp_path, DOING)


class ByteDocuments:
    """A tokenizer that is not known to be of bytes, so that rows are documents."""

    begin: tuple[int, ...] = ()
    folder, options, day = Path("of bytes"), ("bytes",), "2026-03-31"
    encode = staticmethod(BYTES.encode)
    encode_all = staticmethod(BYTES.encode_all)
    bytes_after_first = staticmethod(BYTES.bytes_after_first)


@pytest.mark.slow
def test_rows_are_measured_as_they_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = ["one text", "", "and\nanother", "x"]
    rows = [{"n": number, "text": text, "words": "no"} for number, text in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "body.json").write_text(json.dumps([{"body": text} for text in texts]))
    (tmp_path / "plain").write_text("".join(texts))
    it = model(tokens=ByteDocuments())
    expected = evaluate(it, tmp_path / "plain", DOING)
    assert expected.tokens == sum(map(len, texts)) - 1
    assert in_all(evaluate(it, tmp_path / "rows.jsonl", DOING)) == in_all(expected)
    assert in_all(evaluate(it, tmp_path / "list.json", DOING)) == in_all(expected)
    assert in_all(evaluate(it, tmp_path / "body.json", DOING, "body")) == in_all(expected)
    with pytest.raises(ConfigError) as caught:
        evaluate(it, tmp_path / "body.json", DOING)
    assert "--column" in caught.value.faults[0].remedy
    # A model of bytes reads the bytes of a file, as it was trained.
    of_bytes = evaluate(model(), tmp_path / "rows.jsonl", DOING)
    assert of_bytes.tokens == (tmp_path / "rows.jsonl").stat().st_size - 1


@pytest.mark.slow
def test_a_prompt_that_is_named_is_read_and_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"q": "1 + 1?", "a": "two"}) + "\n")
    it = model(tokens=ByteDocuments())
    assert evaluate(it, tmp_path / "rows.jsonl", DOING, "a").tokens == len("two") - 1
    assert evaluate(it, tmp_path / "rows.jsonl", DOING, "a", "q").tokens == len("two")
    with pytest.raises(ConfigError) as caught:
        evaluate(it, tmp_path / "rows.jsonl", DOING, "a", "asked")
    assert "--prompt" in caught.value.faults[0].remedy


def test_a_column_or_a_prompt_without_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="--data beside --column"):
        evaluate(model(), None, DOING, "text")
    with pytest.raises(ConfigError, match="--data beside --prompt"):
        evaluate(model(), None, DOING, prompt="q")
