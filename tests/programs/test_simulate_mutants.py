"""Does the simulator find bugs? Variants of the code that are broken on purpose, each caught by the first seed of 0 to
199 that catches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.ops import accounts, inner_step, merge, pacer
from isthmus.programs.simulate import run
from isthmus.runtime import quorum
from isthmus.runtime.sim import life

Break = Callable[[pytest.MonkeyPatch], None]


def counters_not_reset(patch: pytest.MonkeyPatch) -> None:
    """A learner goes on counting from the adoption before: its answers hold tokens that are merged."""
    reopen = accounts.FragmentLedger._reopen

    def broken(self: Any, version: Any, position: int) -> None:
        begin = self.begin
        reopen(self, version, position)
        self.begin = begin

    patch.setattr(accounts.FragmentLedger, "_reopen", broken)


def pulls_before_updates(patch: pytest.MonkeyPatch) -> None:
    """A learner answers pulls before it adopts the updates that have come with them."""
    call = inner_step.InnerStep.__call__

    def broken(self: Any, batch: Any, update: Any = None, pull: Any = None, progress: Any = None) -> Any:
        if pull and update and self._phase == "stepping":
            answers = [each for request in pull.values() for each in self._answer(request)]
            yield answers
            return (yield from call(self, batch, update, None, progress))
        return (yield from call(self, batch, update, pull, progress))

    patch.setattr(inner_step.InnerStep, "__call__", broken)


def merged_as_they_arrive(patch: pytest.MonkeyPatch) -> None:
    """A shard merges in the order in which answers came."""

    def disordered(items: Any, key: Any = None) -> list[Any]:
        return sorted(items, key=lambda vote: -vote["end"]) if key is not None else sorted(items)

    patch.setattr(merge, "sorted", disordered, raising=False)


def without_fencing(patch: pytest.MonkeyPatch) -> None:
    """A shard that comes back goes on under the epoch of its former life."""
    begin = merge.Merge.open

    def broken(self: Any, context: Any) -> None:
        begin(self, context)
        self._epoch = 1

    patch.setattr(merge.Merge, "open", broken)


def final_phase_skipped(patch: pytest.MonkeyPatch) -> None:
    """A shard says that it is over once the tokens are spent."""
    patch.setattr(pacer.Pacer, "_open_final", lambda self: [])


def quorum_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A round waits for one answer more than there can be."""
    patch.setattr(quorum._Round, "has_quorum", lambda self, live: len(self.votes) > live)


def strangers_dropped(patch: pytest.MonkeyPatch) -> None:
    """A host gives its core what strangers send, which drops it."""
    channel = life.WireChannel
    patch.setattr(life, "WireChannel", lambda member, **more: channel(member, **{**more, "holds_strangers": False}))


@pytest.mark.parametrize(
    ("broken", "seed", "told"),
    [
        (counters_not_reset, 0, "ValueError: answering up to token"),
        (pulls_before_updates, 0, "had come before the pull"),
        (merged_as_they_arrive, 0, "are not in slot order, once each"),
        (without_fencing, 48, "publishes other bytes as version"),
        (final_phase_skipped, 0, "not over after"),
        (quorum_off_by_one, 0, "quorum: round 1 is open with nobody to wait for"),
        (strangers_dropped, 89, "not over after"),
    ],
)
def test_what_is_broken_is_caught(monkeypatch: pytest.MonkeyPatch, broken: Break, seed: int, told: str) -> None:
    with monkeypatch.context() as patch:
        broken(patch)
        violation = run(seed).violation
    assert violation is not None
    assert told in violation
    assert run(seed).violation is None
