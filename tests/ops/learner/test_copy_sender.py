"""The copy of a learner's leaves is sent as it was at the first request, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.ops.learner import copy_sender
from isthmus.ops.learner.copy_sender import CopySender
from isthmus.ops.recovery.local_files import copy_path
from isthmus.runtime.system.disk import DISK
from tests.ops.bodies import Context


def sender(folder: Path | None) -> CopySender:
    context: Any = Context("learner", slot=1, incarnation=2)
    context.folder, context.disk = folder, DISK
    body = CopySender()
    body.open(context)
    return body


def asked(number: int, at: int = 0, slot: int = 1, life: int = 2) -> Any:
    return {"home": {"slot": slot, "incarnation": life, "number": number, "at": at}}


def write(folder: Path, data: bytes) -> None:
    copy_path(folder, 1).parent.mkdir(exist_ok=True)
    copy_path(folder, 1).write_bytes(data)


def part_of(emitted: Any) -> tuple[int, int, int, bytes]:
    [(port, part)] = emitted
    assert (port, part["slot"], part["incarnation"], part["data"].dtype) == ("part", 1, 2, np.uint8)
    return part["number"], part["at"], part["size"], part["data"].tobytes()


def test_parts_are_of_one_copy_whatever_replaces_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_sender, "PART_BYTES", 4)
    write(tmp_path, b"0123456789")
    body = sender(tmp_path)
    assert part_of(body(asked(7))) == (7, 0, 10, b"0123")
    write(tmp_path, b"abc")
    assert part_of(body(asked(7, 4))) == (7, 4, 10, b"4567")
    assert part_of(body(asked(7, 8))) == (7, 8, 10, b"89")
    assert part_of(body(asked(8))) == (8, 0, 3, b"abc")


def test_where_another_learner_is_asked_nothing_is_kept(tmp_path: Path) -> None:
    write(tmp_path, b"0123")
    body = sender(tmp_path)
    assert body(asked(1, slot=0)) is None
    assert body(asked(1, life=1)) is None
    assert part_of(body(asked(2)))[3] == b"0123"
    assert part_of(body(asked(3, slot=0))) == (0, 0, 0, b"")  # In place of the part that Latest keeps.
    assert body(asked(4, slot=0)) is None


@pytest.mark.parametrize("has_folder", [False, True])
def test_without_a_copy_the_answer_is_empty(tmp_path: Path, *, has_folder: bool) -> None:
    assert part_of(sender(tmp_path if has_folder else None)(asked(1))) == (1, 0, 0, b"")
