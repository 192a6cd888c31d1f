"""The Trainer of transformers as a learner, by the example of the documents, in real processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus.programs.loop_script import LoopScript
from isthmus.programs.loop_task import asked_of
from isthmus.runtime.errors import ConfigError
from tests.programs.engine.run.process_run import FOREVER, Run
from tests.torch_tasks.test_torch_runs import reports

pytestmark = [pytest.mark.torch, pytest.mark.process]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trainer.py"
LINES_MAX = 3
"""Added to a script with a Trainer, at most."""
TOKENS = 4 * 2 * 32
"""Of a step: sequences, calls that are accumulated, labels of a sequence that count."""
CHANGES = {
    '"labels": window}': '"labels": torch.where(torch.arange(CONTEXT) < 32, -100, window)}',
    'save_strategy="no"': 'save_strategy="steps", save_steps=20, logging_steps=1, disable_tqdm=True',
    "trainer.train()": "trainer.train()\n"
    "print('END', trainer.lr_scheduler.last_epoch - trainer.state.global_step, 'jax' in __import__('sys').modules)\n"
    "print('RATE', trainer.optimizer.param_groups[0]['lr'] / arguments.learning_rate)",
}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[int], Run]]:
    text = EXAMPLE.read_text()
    for old, new in CHANGES.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (tmp_path / "train.py").write_text(text)
    runs: list[Run] = []

    def begin(tokens: int) -> Run:
        runs.append(Run(tmp_path, "--loop", "train.py", tokens=tokens))
        return runs[-1]

    yield begin
    for each in runs:
        each.close()


def said(run: Run, slot: int) -> str:
    return (run.folder / "logs" / f"learner-{slot}.log").read_text()


def test_a_script_with_a_trainer_has_few_lines_more() -> None:
    assert 0 < sum("isthmus" in line for line in EXAMPLE.read_text().split('"""')[2].splitlines()) <= LINES_MAX


def test_a_trainer_counts_labels_told_losses_and_ends_with_the_budget(run: Callable[[int], Run]) -> None:
    one = run(100 * TOKENS)
    one.finish("done")
    assert one.merges() > 0
    for slot in (0, 1):
        rows = [line for line in reports(one, slot) if line["loss"] is not None]
        # An epoch, of 16 steps, ends with fewer windows.
        assert {line["tokens"] / line["step"] for line in rows if line["step"] <= 12} == {TOKENS}
        assert not any(line["tokens"] % 32 for line in rows)
        told = [float(each) for each in re.findall(r"'loss': '([\d.]+)'", said(one, slot))]
        # Means of some steps, or the loss of one, which is told with three digits.
        assert all(min(told) - 5e-4 <= line["loss"] <= max(told) + 5e-4 for line in rows[1:]), (rows, told)
        ((ahead, has_jax),) = re.findall(r"END (\d+) (\w+)", said(one, slot))
        assert (int(ahead) > 90_000, has_jax) == (True, "False")  # The schedule has followed the run to its end.
        assert float(re.findall(r"RATE (\S+)", said(one, slot))[0]) == 0.0
        assert said(one, slot).count("the learning rate follows the run") == 1
    drawn = [re.findall(r"'loss': '([\d.]+)'", said(one, slot))[:4] for slot in (0, 1)]
    assert drawn[0] != drawn[1]  # They draw other windows.
    steps = [int(path.name.rpartition("-")[2]) for path in one.here.glob("trainer/checkpoint-*")]
    assert max(steps) % 20 == 0  # Of slot 0 alone.


@pytest.mark.parametrize(
    ("name", "value"), [("data_seed", "1"), ("load_best_model_at_end", "True, eval_strategy='steps', save_steps=500")]
)
def test_what_an_island_cannot_do_is_refused_by_name(tmp_path: Path, name: str, value: str) -> None:
    script = tmp_path / "train.py"
    text = EXAMPLE.read_text().replace('save_strategy="no",', "").replace("callbacks=", "eval_dataset=data, callbacks=")
    script.write_text(text.replace("use_cpu=True", f"use_cpu=True, {name}={value}"))
    with pytest.raises(ConfigError, match=name):
        asked_of(LoopScript(str(script), (), str(tmp_path)))


LOSSES = {
    "label_smoothing_factor": ("use_cpu=True", "use_cpu=True, label_smoothing_factor=0.1"),
    "compute_loss": (
        "trainer = Trainer(",
        "class Own(Trainer):\n"
        "    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):\n"
        "        logits = model(input_ids=inputs['input_ids']).logits[:, :-1]\n"
        "        labels = inputs['labels'][:, 1:].flatten()\n"
        "        return 3 * torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels)\n"
        "trainer = Own(",
    ),
    "compute_loss_func": (
        "callbacks=",
        "compute_loss_func=lambda outputs, labels, num_items_in_batch=None: torch.nn.functional.cross_entropy("
        "outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction='sum') / num_items_in_batch,\n    "
        "callbacks=",
    ),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_is_that_of_the_trainer_whatever_computes_it(tmp_path: Path, kind: str) -> None:
    """It logs each step's loss, which is what the run has of the first steps."""
    text = EXAMPLE.read_text()
    for old, new in (LOSSES[kind], ('save_strategy="no"', 'save_strategy="no", logging_steps=1, disable_tqdm=True')):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "train.py").write_text(text)
    one = Run(tmp_path, "--loop", "train.py", tokens=30 * 4 * 2 * 64)
    try:
        one.finish("done")
        for slot in (0, 1):
            told = [float(each) for each in re.findall(r"'loss': '([\d.]+)'", said(one, slot))]
            rows = [line for line in reports(one, slot) if line["loss"] is not None]
            assert rows
            assert all(min(told) - 5e-3 <= line["loss"] <= max(told) + 5e-3 for line in rows), (rows, told)
            assert (told[0] > 12.0) == (kind == "compute_loss")  # Three times that of other losses.
    finally:
        one.close()


def test_the_next_life_of_a_killed_trainer_goes_on_with_its_schedule(run: Callable[[int], Run]) -> None:
    one = run(FOREVER)
    one.wait_for(lambda: (one.folder / "local" / "learner-1").exists())
    one.wait_for_merges(5)
    one.kill("learner/1")
    one.wait_for(lambda: one.host("learner/1").get("incarnation") == 2)
    one.wait_for(lambda: any(line["incarnation"] == 2 and line["step"] > 0 for line in reports(one, 1)))
    one.wait_for_merges(5)
    one.stop()
    (ahead,) = re.findall(r"END (\d+)", said(one, 1))
    assert int(ahead) > 0  # The schedule is behind what both lives have stepped, the Trainer counts its own.


@pytest.mark.long
def test_a_killed_trainer_that_goes_on_from_its_last_checkpoint_is_no_fault(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    for old, new in (
        ('save_strategy="no"', 'save_strategy="steps", save_steps=10, save_total_limit=1, disable_tqdm=True'),
        (
            "trainer.train()",
            "from transformers.trainer_utils import get_last_checkpoint\n"
            "last = get_last_checkpoint('trainer') if Path('trainer').exists() else None\n"
            "print('FROM', last, flush=True)\n"
            "trainer.train(resume_from_checkpoint=last)",
        ),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "train.py").write_text(text)
    one = Run(tmp_path, "--loop", "train.py", tokens=FOREVER)
    try:
        one.wait_for(lambda: (one.folder / "local" / "learner-0").exists())
        one.wait_for(lambda: list(tmp_path.glob("trainer/checkpoint-*/trainer_state.json")))
        one.kill("learner/0")
        one.wait_for(lambda: one.host("learner/0").get("incarnation") == 2)
        one.wait_for(lambda: any(line["incarnation"] == 2 and line["step"] > 0 for line in reports(one, 0)))
        one.stop()
        assert re.findall(r"FROM (\S+)", said(one, 0))[1].startswith("trainer/checkpoint-")
    finally:
        one.close()
