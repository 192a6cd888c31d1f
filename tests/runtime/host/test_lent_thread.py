"""A node's thread that other code lends: works run there only, and one that yields gives it back."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

from isthmus.runtime.host.threads import LentThread


def never() -> bool:
    return False


class Works:
    """Works that note what happens, and in which thread."""

    def __init__(self) -> None:
        self.lent = LentThread()
        self.noted: list[Any] = []
        self.threads: set[int] = set()

    def put(self, work: Any) -> None:
        self.lent.works.put((work, self.done))

    def done(self, result: Any, error: BaseException | None) -> None:
        self.threads.add(threading.get_ident())
        self.noted.append(result if error is None else error)

    def firing(self, *parts: str) -> Any:
        def work() -> Generator[None, None, str]:
            for part in parts:
                self.noted.append(part)
                yield
            self.threads.add(threading.get_ident())
            return "ended"

        return work


def test_a_work_that_yields_goes_on_when_the_thread_is_lent_again() -> None:
    works = Works()
    works.put(lambda: "opened")
    works.put(works.firing("first"))
    works.put(works.firing("second"))
    assert works.lent.run(never)
    assert works.noted == ["opened", "first"]
    assert works.lent.run(never)
    assert works.noted == ["opened", "first", "ended", "second"]
    assert works.threads == {threading.get_ident()}


def test_it_comes_back_when_that_is_enough_and_when_none_is_to_come() -> None:
    works = Works()
    works.put(works.firing("first"))
    assert works.lent.run(lambda: bool(works.noted))
    assert not works.lent.run(lambda: bool(works.noted))  # The firing has ended, and no other is wanted.
    assert works.noted == ["first", "ended"]
    assert not works.lent.is_closed
    works.lent.works.put(None)
    assert not works.lent.run(never)
    assert works.lent.is_closed
    assert not works.lent.run(never)


def test_an_error_is_that_of_the_work_and_the_next_one_runs() -> None:
    works, boom = Works(), ValueError("boom")

    def fails() -> Generator[None, None, None]:
        yield
        raise boom

    works.put(fails)
    works.put(lambda: "next")
    works.lent.works.put(None)
    assert works.lent.run(never)
    assert not works.lent.run(never)
    assert works.noted == [boom, "next"]


def test_a_firing_that_fails_before_it_yields_has_no_result() -> None:
    results: list[Any] = []

    def firing() -> Generator[None, None, None]:
        raise ValueError("broken")
        yield

    lent = LentThread()
    lent.works.put((firing, lambda result, error: results.append((result, str(error)))))
    lent.works.put(None)
    assert not lent.run(never)
    assert results == [(None, "broken")]


def test_a_firing_under_way_ends_after_the_end_of_all_others() -> None:
    works = Works()
    works.put(works.firing("first"))
    assert works.lent.run(never)
    works.lent.works.put(None)
    assert not works.lent.run(never)
    assert works.noted == ["first", "ended"]
