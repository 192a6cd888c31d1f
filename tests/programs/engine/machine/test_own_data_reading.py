"""A machine's own data, before learners train on them: what is found, and what the home hears of what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from isthmus.ops.data.site_terms import SiteTerms
from isthmus.programs import SHIPPED_TASK
from isthmus.programs.engine.cluster.machine_file import SiteRules
from isthmus.programs.engine.machine.own_data_reading import (
    KINDS,
    READINGS_MAX,
    UNLIKE,
    UNMEANT,
    UNREADABLE,
    UNSPLIT,
    OwnDataReader,
    UnreadError,
    contents_digest,
    found_of,
)
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.own_data import OwnData, on_own_data
from isthmus.runtime.errors import ConfigError

TASK = reference.called(SHIPPED_TASK, {"batch": 4, "data": ("/home/there",)})
IDS = reference.called(SHIPPED_TASK, {"batch": 4, "vocabulary": 300, "data": ("/home/there.npy",)})


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "Jane Doe"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"{number} words of Jane. " * 200)
    return folder


def test_what_is_found_is_told_by_figures_and_by_a_digest_of_contents_alone(texts: Path, tmp_path: Path) -> None:
    found = found_of(on_own_data(TASK, (str(texts),)))
    size = sum(path.stat().st_size for path in texts.iterdir())
    assert (found["bytes"], found["tokens"], found["table"]["files"]) == (size, size, 3)
    (tmp_path / "else").mkdir()
    for number, path in enumerate(sorted(texts.iterdir(), reverse=True)):
        (tmp_path / "else" / f"{number}.md").write_bytes(path.read_bytes())
    assert found_of(on_own_data(TASK, (str(tmp_path / "else"),)))["digest"] == found["digest"]
    (tmp_path / "else" / "0.md").write_text("other")
    assert contents_digest((tmp_path / "else").iterdir()) != found["digest"]


@pytest.mark.parametrize(
    ("task", "kind"),
    [(TASK, "none"), (IDS, "beyond"), (IDS, "zeros"), (TASK, "few"), (TASK, "ids")],
)
def test_each_fault_has_a_kind_which_says_nothing_of_them(task: str, kind: str, tmp_path: Path) -> None:
    ids = {
        "beyond": np.arange(4000) % 301,
        "zeros": np.zeros(4000, np.int64),
        "ids": np.arange(4000) % 200,
    }
    path = tmp_path / ("Jane.npy" if kind in ids else "Jane.txt")
    if kind in ids:
        np.save(path, ids[kind].astype(np.uint16))
    elif kind != "none":
        path.write_text("Jane " * 4)
    expected = {"zeros": UNMEANT, "few": UNSPLIT}.get(kind, UNREADABLE)
    found = found_of(on_own_data(task, (str(path),)))
    assert found["kind"] == expected
    assert found["faults"]
    assert not any("Jane" in each for each in KINDS)


@pytest.fixture
def loop() -> Iterator[Any]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.further
@pytest.mark.process
def test_they_are_read_once_for_a_run_and_the_home_hears_no_name(texts: Path, loop: Any) -> None:
    lines: list[str] = []
    reader = OwnDataReader(loop, "beta", SiteRules((str(texts),), is_told=False, keeps_own=True), lines.append)

    async def read(task: str, tokens: int = 100) -> Any:
        of_run = {"files": 1, "bytes": 100, "tokens": tokens}
        return await asyncio.gather(reader.read(task, of_run), reader.read(task, {}))

    (own, table), again = loop.run_until_complete(read(TASK))
    assert again == (own, table)
    assert (own.paths, own.terms.is_told, own.terms.keeps_own) == ((str(texts),), False, True)
    assert own.terms.tokens == table["tokens"]
    assert "Jane" in " ".join(lines)
    lines.clear()
    with pytest.raises(ConfigError) as unlike:
        loop.run_until_complete(read(TASK, 50))
    lost = reference.called(SHIPPED_TASK, {"context": 1 << 20})
    with pytest.raises(ConfigError) as refused:
        loop.run_until_complete(read(lost))
    assert (unlike.value.faults[0].found, refused.value.faults[0].found) == (UNLIKE, UNSPLIT)
    assert "Jane" not in str(refused.value)
    reader.taken(TASK)
    with pytest.raises(UnreadError):
        loop.run_until_complete(reader.read(TASK, {}, 0.001))
    reader.close()
    reader.close()


class Unread:
    """What has been begun, and has found nothing so far."""

    def __init__(self, loop: Any) -> None:
        self.found, self.is_told, self.child = loop.create_future(), False, self
        self.line, self.ended = self, 0

    def fileno(self) -> int:
        return -1

    def end(self) -> None:
        self.ended += 1


def test_a_home_that_asks_for_many_tasks_has_few_processes_begun(
    texts: Path, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = dict[str, Unread]()
    reader = OwnDataReader(loop, "beta", SiteRules((str(texts),)), lambda line: None)
    monkeypatch.setattr(reader, "_begin", lambda task: begun.setdefault(task, Unread(loop)))

    def ask(batch: int) -> None:
        with pytest.raises(UnreadError):
            loop.run_until_complete(reader.read(reference.called(SHIPPED_TASK, {"batch": batch}), {}, 0.001))

    for batch in range(1, 3 * READINGS_MAX):
        ask(batch)
    assert len(begun) == READINGS_MAX
    first = next(iter(begun.values()))
    first.found.set_result(None)
    ask(100)
    assert (len(begun), first.ended) == (READINGS_MAX + 1, 1)


def test_the_owner_is_told_where_learners_go_on_with_what_the_daemon_before_had(texts: Path, loop: Any) -> None:
    lines: list[str] = []
    rules = SiteRules((str(texts),), is_told=False)
    reader = OwnDataReader(loop, "beta", rules, lines.append)
    terms = SiteTerms("0" * 32, 4, 4, is_told=False)
    reader.tell_of_adopted(OwnData(rules.data, terms))
    assert lines == []
    for former in (None, OwnData(("/before",), terms), OwnData(rules.data, replace(terms, is_told=True))):
        reader.tell_of_adopted(former)
    assert len(lines) == 3
    assert "/before" in lines[1]
