"""Tokens that a resume has undone do not count for the budget, and what learners are told leaves them out."""

from __future__ import annotations

import msgspec

from isthmus.programs.engine.recorder import books as recorder_memory
from isthmus.programs.engine.recorder.books import BooksMemory
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.machine import Mount, SimulatedDisk
from isthmus.runtime.system.files import write_bytes
from tests.programs.engine.recorder.recorder_story import FOLDER, SECOND, Context, made, report

BUDGET = 800
TRAINED = [[0, 1, 500], [1, 1, 300]]


def test_a_life_that_is_undone_stays_so_and_not_twice() -> None:
    memory = BooksMemory()
    for undone in ([[0, 1, 200]], [[0, 1, 200], [1, 2, 30]], [[0, 1, 150]], []):
        memory.undo(undone)
    assert memory.undone == [[0, 1, 200], [1, 2, 30]]


def test_a_run_goes_on_until_as_many_tokens_count_as_its_budget() -> None:
    mount = Mount(SimulatedDisk("undone"))
    memory = BooksMemory(trained=TRAINED, zero=SECOND)
    write_bytes(FOLDER / recorder_memory.FILE, msgspec.msgpack.encode(memory), mount)
    recorder_memory.undo(FOLDER, mount, [[0, 1, 200]])
    context = Context(mount, 2 * SECOND, incarnation=2)
    recorder = made(tokens=BUDGET)
    recorder.open(context)
    found = []
    for tokens in (0, 199, 200):  # Of the next life of slot 0.
        context.at += 2 * SECOND
        told = report(0, context.at, incarnation=2, tokens=tokens, totals=[[0, 2, tokens]])
        [control] = (recorder(progress={(Replica("learner", 0), None): told}) or {}).values()
        found.append((control["totals"], control["stop"], context.status["tokens"], context.status["tokens_undone"]))
    counted = [[0, 1, 300], [0, 2, 0], [1, 1, 300]]
    assert found[0] == (counted, False, 600, 200)
    assert [each[1:] for each in found] == [(False, 600, 200), (False, 799, 200), (True, 800, 200)]
