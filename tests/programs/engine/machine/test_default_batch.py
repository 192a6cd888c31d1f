"""The batch of a run on accelerators: by the table of devices, with made machines."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.programs.engine.cluster.devices import CATALOGUE, Device, find
from isthmus.programs.engine.cluster.placement import Machine
from isthmus.programs.engine.islands import environment
from isthmus.programs.engine.islands.environment import Accelerators
from isthmus.programs.engine.machine import default_islands
from isthmus.programs.engine.machine.default_batch import filled, with_batch
from isthmus.programs.engine.machine.default_islands import with_islands
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.programs.sweeps import BATCHES

CONTEXT = 1024
"""That of gpt-124m."""


def device(kind: str) -> Device:
    return find(kind, "Reading")


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        ("TPU v4", 1528),
        ("TPU v5e", 1604),
        ("TPU v5p", 1107),
        ("TPU v6e", 3825),
        ("NVIDIA A100 40GB", 1338),
        ("NVIDIA A100 80GB", 1021),
        ("NVIDIA H100", 1969),
        ("NVIDIA H100 PCIe", 2520),
        ("NVIDIA H200", 1375),
        ("CPU", None),
    ],
)
def test_the_tokens_that_fill_a_device_follow_from_its_published_figures(kind: str, tokens: int | None) -> None:
    assert device(kind).tokens_filling == tokens


def test_all_kinds_are_in_the_table_above_and_a_measured_figure_comes_first() -> None:
    assert len(CATALOGUE) == 10
    assert Device("own", flops=1e14, memory_bandwidth_bytes=10**12, tokens_measured=5000).tokens_filling == 5000
    assert Device("own", flops=1e14).tokens_filling is Device("own").tokens_filling is None


@pytest.mark.parametrize(
    ("kind", "devices", "batch", "context", "sequences"),
    [
        ("H200", 1, 1, CONTEXT, 2),
        ("H100", 1, 1, CONTEXT, 2),
        ("v6e", 1, 1, CONTEXT, 4),
        ("v6e", 4, 1, CONTEXT, 8),  # Beyond the largest default no batch goes.
        ("H200", 1, 1, 64, 8),
        ("H200", 4, 1, CONTEXT, 8),
        ("H200", 1, 3, 128, 6),  # A multiple of what it was: of as many stages, or microbatches.
        ("H200", 1, 2, CONTEXT, None),
        ("H200", 1, 1, 2048, None),
        ("H200", 1, 8, 64, None),
        ("CPU", 1, 1, CONTEXT, None),
    ],
)
def test_a_batch_below_what_fills_the_islands_devices_grows(
    kind: str, devices: int, batch: int, context: int, sequences: int | None
) -> None:
    found = filled(batch, batch * context, device(kind), devices)
    assert (None if found is None else found.sequences) == sequences


def test_what_was_chosen_and_what_it_costs_is_told() -> None:
    found = filled(1, CONTEXT, device("H200"), 1)
    assert found is not None
    assert "NVIDIA H200, by its published figures" in found.told
    assert "1 would take 1.34 times as long" in found.told
    measured = filled(1, CONTEXT, Device("own", tokens_measured=8 * CONTEXT), 1)
    assert measured is not None
    assert (measured.sequences, "own, as measured" in measured.told, "8.00 times" in measured.told) == (8, True, True)


SMALL = {"layers": 1, "width": 16, "heads": 2, "context": 512}
"""On an H200 four of its sequences, 2,048 tokens, fill the device."""
FEW, MANY = 80_000, 10**9
"""Tokens with which a run has batches of 1 sequence, and of 8."""


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    return str(folder)


class Asked:
    """Requests of a small model, and how often one was prepared."""

    def __init__(self, text: str, tokens: int, **task: Any) -> None:
        self.run, self.task, self.count = {"tokens": tokens}, {**SMALL, "data": [text], **task}, 0

    def __call__(self, run: dict[str, Any], more: dict[str, Any]) -> Request:
        self.count += 1
        return prepare(run=run, task_settings={**self.task, **more}, computes=False)

    def on(self, *machines: Machine) -> Request:
        """The request for a cluster."""
        return with_batch(self(self.run, {}), machines, lambda more: self(self.run, more))


def settings(request: Request) -> tuple[int, int]:
    """Its batch and interval."""
    return request.config["task"]["batch"], request.config["program"]["interval"]


def on_cards(monkeypatch: pytest.MonkeyPatch, card: str, count: int = 4) -> None:
    monkeypatch.setattr(environment, "find", lambda *_: Accelerators("cuda", tuple(map(str, range(count)))))
    monkeypatch.setattr(default_islands, "card_names", lambda: [card] * count if card else [])


@pytest.mark.slow
def test_on_this_machines_cards_the_interval_is_shortened_before_the_batch(
    text_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cards(monkeypatch, "NVIDIA H200")
    asked = Asked(text_folder, 2_500_000)
    request = with_islands(asked(asked.run, {}), asked.run, asked)
    assert settings(request) == (4, 8)  # On CPU cores (1, 20).
    assert request.run.learners == 4
    assert str(request.chosen["task.batch"]).startswith("4 (not 1, ")
    assert list(request.chosen)[:1] == ["task.batch"]
    assert request.config["task"]["lr"] > asked(asked.run, {}).config["task"]["lr"]
    given = {**asked.run, "learners": 2}  # Of two devices each.
    assert settings(with_islands(asked(given, {}), given, asked))[0] == 8


@pytest.mark.parametrize(("tokens", "task"), [(MANY, {}), (FEW, {"batch": 1})])
def test_a_batch_that_was_given_or_is_large_enough_stays(
    text_folder: str, monkeypatch: pytest.MonkeyPatch, tokens: int, task: dict[str, Any]
) -> None:
    on_cards(monkeypatch, "NVIDIA H200")
    asked = Asked(text_folder, tokens, **task)
    request = with_islands(asked(asked.run, {}), asked.run, asked)
    assert asked.count == 1
    assert settings(request)[0] == task.get("batch", BATCHES[0])
    assert request.chosen.get("task.batch") in (None, BATCHES[0])


@pytest.mark.parametrize("card", ["Own chip", ""])
def test_a_card_that_is_not_in_the_table_is_told_with_what_is_assumed(
    text_folder: str, monkeypatch: pytest.MonkeyPatch, card: str
) -> None:
    on_cards(monkeypatch, card)
    asked = Asked(text_folder, FEW)
    request = with_islands(asked(asked.run, {}), asked.run, asked)
    assert settings(request)[0] == 1
    assert str(request.chosen["task.batch"]).startswith("1 (by the tokens alone: ")
    assert card in str(request.chosen["task.batch"])


@pytest.mark.slow
def test_in_a_cluster_the_device_that_takes_most_to_fill_counts(text_folder: str) -> None:
    asked = Asked(text_folder, FEW)
    hub = Machine("hub", roles=("syncer",), device=device("v6e"))
    cores, card, chips = (Machine(kind, device=device(kind)) for kind in ("cpu", "H200", "v6e"))
    batches = [settings(asked.on(hub, *each))[0] for each in ((), (cores, Machine("x")), (cores, card), (card, chips))]
    assert batches == [1, 1, 4, 8]


@pytest.mark.slow
def test_a_default_batch_divides_by_the_devices_of_each_island(text_folder: str) -> None:
    asked = Asked(text_folder, FEW)
    pair, three, eight = (Machine(f"of {count}", devices=count) for count in (2, 3, 8))
    requests = [asked.on(*each) for each in ((pair,), (pair, three), (pair, eight))]
    assert [settings(each)[0] for each in requests] == [2, 6, 8]
    assert "an island of 3 devices" in str(requests[1].chosen["task.batch"])
    given = Asked(text_folder, FEW, batch=3)
    assert settings(given.on(pair))[0] == 3  # It is refused as the island's mesh is known, by its own name.
