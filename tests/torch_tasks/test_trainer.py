"""The Trainer of transformers as a learner, by the example of the documents, in real processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus.programs.loop_task import LoopScript, asked_of
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
    "print('END', trainer.lr_scheduler.last_epoch - trainer.state.global_step, 'jax' in __import__('sys').modules)",
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
        assert "END 0 False" in said(one, slot)
    drawn = [re.findall(r"'loss': '([\d.]+)'", said(one, slot))[:4] for slot in (0, 1)]
    assert drawn[0] != drawn[1]  # They draw other windows.
    steps = [int(path.name.rpartition("-")[2]) for path in one.here.glob("trainer/checkpoint-*")]
    assert max(steps) % 20 == 0  # Of slot 0 alone.


def test_an_order_of_the_data_that_is_the_same_for_all_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(EXAMPLE.read_text().replace("use_cpu=True", "use_cpu=True, data_seed=1"))
    with pytest.raises(ConfigError, match="data_seed"):
        asked_of(LoopScript(str(script), (), str(tmp_path)))


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
