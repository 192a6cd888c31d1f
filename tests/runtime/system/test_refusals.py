"""What error numbers say."""

from __future__ import annotations

import errno
import os

import pytest

from isthmus.runtime.system.refusals import is_absent, is_own, reason, remedy


@pytest.mark.parametrize(
    "name",
    ["EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT", "EROFS", "ENOLCK", "ENOSYS", "EOPNOTSUPP", "EAGAIN", "ESTALE"],
)
def test_what_a_number_says_goes_before_what_is_usual(name: str) -> None:
    error = OSError(getattr(errno, name), "no")
    assert remedy(error, "Do as usual.") not in ("", "Do as usual.")
    assert remedy(error).endswith(".")


def test_whoever_asks_knows_better_what_to_do_without_permission() -> None:
    error = PermissionError(errno.EACCES, "no")
    assert remedy(error, "Do as usual.") == "Do as usual."
    assert remedy(error)


def test_an_error_without_a_number_says_nothing() -> None:
    assert remedy(OSError("no way"), "Do as usual.") == "Do as usual."
    assert remedy(ValueError("no")) == ""
    assert reason(OSError("no way")) == "no way"
    assert reason(OSError(errno.EIO, "broken", "/a")) == "broken: /a"


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_a_fact_about_the_other_is_none_about_this_process(number: int) -> None:
    error = OSError(number, os.strerror(number))
    assert not (is_absent(error) and is_own(error))
    assert is_own(error) == (number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
    assert is_absent(error) == (number in (errno.ENOENT, errno.ENOTDIR))
