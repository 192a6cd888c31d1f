"""What people ask of a Trainer of transformers, each in the process of the test, with an island without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import isthmus.torch
from isthmus.runtime.errors import ConfigError
from tests.torch_tasks.lone_island import LoneIsland, begin

pytestmark = pytest.mark.torch

CONTEXT = 16
STEPS = 24
_LINES = [[place % 61 for place in range(begin, begin + CONTEXT)] for begin in range(0, 10 * CONTEXT, CONTEXT)]
ROWS = [{"input_ids": each, "labels": each} for each in _LINES]
"""Of ten rows: an epoch of batches of four ends with one of two."""
RAGGED = [{"input_ids": each[: 4 + place]} for place, each in enumerate(_LINES)]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def padded(rows: list[Any]) -> dict[str, torch.Tensor]:
    """As a collator pads: what is padded has no loss."""
    most = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (most - len(row["input_ids"])) for row in rows])
    counts = torch.tensor([[len(row["input_ids"])] for row in rows])
    return {"input_ids": ids, "labels": torch.where(torch.arange(most) < counts, ids, -100)}


class Asking(TrainerCallback):  # type: ignore[misc]
    """Another callback of the user's: it predicts in the midst, and asks for checkpoints after the island's."""

    trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save = state.global_step % 10 == 0
        if state.global_step == 6:
            assert self.trainer.predict(ROWS[:2]).metrics["test_loss"] > 0
            assert self.trainer.evaluate(ROWS[:2])["eval_loss"] > 0


EVALUATED = {"eval_strategy": "steps", "eval_steps": 5, "metric_for_best_model": "loss"}
WORKS: dict[str, dict[str, Any]] = {
    "epochs": {"max_steps": -1, "num_train_epochs": 500},
    "uneven accumulation": {"gradient_accumulation_steps": 2},
    "label smoothing": {"label_smoothing_factor": 0.1},
    "evaluation": EVALUATED,
    "the best is saved": {**EVALUATED, "save_strategy": "best"},
    "checkpoints": {"save_strategy": "steps", "save_steps": 5, "save_total_limit": 2},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "adafactor": {"optim": "adafactor"},
    "bf16": {"bf16": True},
    "lengths": {"train_sampling_strategy": "group_by_length"},
    "tokens seen": {"include_num_input_tokens_seen": "non_padding"},
    "noise": {"neftune_noise_alpha": 5},
    "no clipping": {"max_grad_norm": 0},
    "a rise of steps": {"warmup_steps": 2},
    "a rise of a share": {"warmup_steps": 0.25},
}


def trained(more: dict[str, Any], **given: Any) -> Any:
    usual = {
        "output_dir": "trainer",
        "max_steps": 5000,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    callbacks = given.pop("callbacks", [])
    if more.pop("seq2seq", False):
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
        model, kind, arguments = T5ForConditionalGeneration(T5Config(vocab_size=64, **sizes)), Seq2SeqTrainer, None
        arguments = Seq2SeqTrainingArguments(**{**usual, **more})
    else:
        model, kind = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=CONTEXT, **SIZES)), Trainer
        arguments = TrainingArguments(**{**usual, **more})
    data = given.pop("train_dataset", ROWS)
    trainer = kind(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=ROWS[:2],
        callbacks=[*callbacks, isthmus.torch.Callback(), Asking()],
        **given,
    )
    next(each for each in trainer.callback_handler.callbacks if isinstance(each, Asking)).trainer = trainer
    trainer.train()
    return trainer


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(made: list[LoneIsland], trainer: Any, *, peak: float = 1e-3) -> LoneIsland:
    """The one island, that has made its steps, under a schedule that ends with them."""
    (one,) = made
    assert (len(one.losses), trainer.state.global_step, one.is_left) == (STEPS, STEPS, True)
    assert trainer.optimizer.param_groups[0]["lr"] <= 0.01 * peak
    assert max(map(max, one.rates)) == pytest.approx(peak, rel=0.05)
    assert one.rates[-1][0] <= 0.06 * peak  # The last of few steps: a tenth of the run is not known yet.
    return one


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("case", WORKS)
def test_a_trainer_works_as_an_island(case: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin(monkeypatch, steps=STEPS)
    trainer = trained(dict(WORKS[case]))
    one = checked(made, trainer)
    rows = {2, 8} if case == "uneven accumulation" else {2, 4}
    assert set(one.tokens) == {each * CONTEXT for each in rows}
    saved = {path.name for path in here.glob("trainer/checkpoint-*")}
    assert ("checkpoint-20" in saved) or case == "checkpoints"  # Of the callback behind the island's.
    assert len(saved) <= 2 or case != "checkpoints"


def test_tokens_are_the_labels_that_have_a_loss(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin(monkeypatch, steps=STEPS)
    one = checked(made, trained({}, train_dataset=RAGGED, data_collator=padded))
    assert sum(one.tokens[:3]) == sum(len(row["input_ids"]) for row in RAGGED)


def test_a_seq2seq_trainer_generates_in_the_midst(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin(monkeypatch, steps=STEPS)
    generates = {"predict_with_generate": True, "generation_max_length": 4}
    checked(made, trained({"seq2seq": True, **generates, "eval_strategy": "steps", "eval_steps": 8}))


def test_a_scheduler_of_the_users_is_led_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin(monkeypatch, steps=STEPS)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=CONTEXT, **SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    own = optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=5000)
    arguments = TrainingArguments("trainer", max_steps=5000, save_strategy="no", report_to="none", use_cpu=True)
    callbacks = [isthmus.torch.Callback()]
    trainer = Trainer(model, arguments, train_dataset=ROWS, callbacks=callbacks, optimizers=own)
    trainer.train()
    checked(made, trainer)


def test_a_trainer_that_stops_early_leaves(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin(monkeypatch, steps=STEPS)
    trainer = trained(dict(EVALUATED), callbacks=[EarlyStoppingCallback(1, 100.0)])
    (one,) = made
    assert (trainer.state.global_step, len(one.losses), one.is_left) == (6, 6, True)  # At the second evaluation.


def test_only_slot_0_writes_whatever_asks_for_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin(monkeypatch, steps=STEPS, slot=1)
    trainer = trained({**EVALUATED, "save_strategy": "best"})
    checked(made, trainer)
    assert not list(here.glob("trainer/checkpoint-*"))
    trainer.save_model("mine")  # After the training each island writes what its script says.
    assert (here / "mine" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("data_seed", 0), ("load_best_model_at_end", True), ("auto_find_batch_size", True)]
)
def test_what_an_island_cannot_do_is_refused_by_name(
    name: str, value: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begin(monkeypatch, steps=STEPS)
    more = {**EVALUATED, "save_strategy": "steps", "save_steps": 5} if name.startswith("load") else {}
    with pytest.raises(ConfigError) as caught:
        trained({**more, name: value})
    assert [fault.expected for fault in caught.value.faults] == [f"no {name}"]
    assert made == []


def test_a_checkpoint_is_gone_on_from_by_later_lives_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that looks for its last checkpoint finds one after a kill: that must not end the run."""
    begin(monkeypatch, steps=STEPS)
    trained({"save_strategy": "steps", "save_steps": 10})
    again = {"resume_from_checkpoint": "trainer/checkpoint-10"}
    for incarnation in (1, 2):
        made = begin(monkeypatch, steps=STEPS, incarnation=incarnation)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=CONTEXT, **SIZES))
        arguments = TrainingArguments(
            "other", max_steps=5000, per_device_train_batch_size=4, report_to="none", use_cpu=True, save_strategy="no"
        )
        trainer = Trainer(model, arguments, train_dataset=ROWS, callbacks=[isthmus.torch.Callback()])
        if incarnation == 1:
            with pytest.raises(ConfigError, match="resume_from_checkpoint"):
                trainer.train(**again)
            assert made == []
        else:
            trainer.train(**again)
            assert [len(one.losses) for one in made] == [STEPS]


def test_a_second_training_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch, steps=STEPS)
    trainer = trained({})
    with pytest.raises(ConfigError, match="second"):
        trainer.train()
