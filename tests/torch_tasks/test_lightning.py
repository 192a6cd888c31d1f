"""The Trainer of Lightning as a learner, by the example of the documents, in real processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from isthmus.programs.loop_script import LoopScript
from isthmus.programs.loop_task import asked_of
from isthmus.runtime.errors import ConfigError
from tests.programs.engine.run.process_run import FOREVER, Run
from tests.torch_tasks.test_torch_runs import reports

pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.soak,
    pytest.mark.skipif(find_spec("lightning") is None, reason="it needs Lightning"),
]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "lightning_module.py"
LINES_MAX = 3
"""Added to a script with a Trainer, at most."""
TOKENS = 2 * 64
"""Of a step: examples of two batches."""
CHANGES = {
    "        return loss\n": '        print("LOSS", loss.item(), flush=True)\n        return loss\n',
    "    logger=False,\n": "    enable_progress_bar=False,\n",
    "trainer.fit(module, loader)": "trainer.fit(module, loader)\n"
    "counted = trainer.lr_scheduler_configs[0].scheduler.last_epoch\n"
    "total = float(sum(leaf.double().abs().sum() for leaf in module.parameters()))\n"
    "print('END', counted - trainer.global_step, total, 'jax' in __import__('sys').modules)",
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


def test_a_script_with_a_module_of_lightning_has_few_lines_more() -> None:
    assert 0 < sum("isthmus" in line for line in EXAMPLE.read_text().split('"""')[2].splitlines()) <= LINES_MAX


def test_a_module_trains_counts_its_examples_and_ends_with_the_budget(run: Callable[[int], Run]) -> None:
    one = run(400 * TOKENS)
    one.finish("done")
    assert one.merges() > 0
    for slot in (0, 1):
        rows = [line for line in reports(one, slot) if line["loss"] is not None]
        assert {line["tokens"] / line["step"] for line in rows if line["step"]} == {TOKENS}
        told = [float(each) for each in re.findall(r"LOSS ([\d.e-]+)", said(one, slot))]
        assert all(min(told) <= line["loss"] <= max(told) for line in rows[1:]), (rows, told)  # Means of some steps.
    (ahead, total, has_jax), other = (re.findall(r"END (\S+) (\S+) (\S+)", said(one, slot))[0] for slot in (0, 1))
    assert (int(ahead) > 1000, has_jax) == (True, "False")  # The schedule has followed the run to its end.
    assert other[1] == total  # Both have the last model.
    drawn = [re.findall(r"LOSS ([\d.e-]+)", said(one, slot))[:4] for slot in (0, 1)]
    assert drawn[0] != drawn[1]  # They draw other examples.
    written = list((one.here / "lightning_logs").rglob("*.ckpt"))
    assert len(written) == 1  # Of slot 0 alone.


def test_the_next_life_of_a_killed_trainer_goes_on_with_its_schedule(run: Callable[[int], Run]) -> None:
    one = run(FOREVER)
    one.wait_for(lambda: (one.folder / "local" / "learner-1").exists())
    one.wait_for_merges(5)
    one.kill("learner/1")
    one.wait_for(lambda: one.host("learner/1").get("incarnation") == 2)
    one.wait_for(lambda: any(line["incarnation"] == 2 and line["step"] > 0 for line in reports(one, 1)))
    one.wait_for_merges(5)
    one.stop()
    (ahead,) = re.findall(r"END (\S+)", said(one, 1))
    assert int(ahead) > 0  # The schedule is behind what both lives have stepped, the Trainer counts its own.


WRONG = {
    "no loss": ("        return loss\n", "        return None\n", "none in 100 batches"),
    "a parameter in two optimizers": (
        '        return {"optimizer": optimizer',
        "        self.automatic_optimization = False\n"
        "        return [optimizer, torch.optim.SGD(self.parameters(), lr=0.1)]\n"
        '        return {"optimizer": optimizer',
        "layers/0/weight in AdamW and SGD",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_loop_of_an_island_is_refused(name: str, tmp_path: Path) -> None:
    old, new, found = WRONG[name]
    (tmp_path / "train.py").write_text(EXAMPLE.read_text().replace(old, new))
    with pytest.raises(ConfigError) as caught:
        asked_of(LoopScript(str(tmp_path / "train.py"), (), str(tmp_path)))
    assert [fault.found for fault in caught.value.faults] == [found]


def test_tokens_of_a_batch_are_its_labels_or_its_examples() -> None:
    from isthmus.programs.trainer_island import tokens_in

    x = torch.zeros(6, 3)
    assert [tokens_in(x), tokens_in((x, x[0])), tokens_in({"x": x}), tokens_in([[x]])] == [6] * 4
    assert int(tokens_in({"x": x, "labels": torch.tensor([[1, -100, 2], [3, -100, -100]])})) == 3
