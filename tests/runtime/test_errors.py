"""What others say is shown as text: it moves no cursor, and none of its lines passes for an entry of a log."""

from __future__ import annotations

from isthmus.runtime.errors import log_entry, printable


def test_an_entry_of_a_log_is_printable_and_its_further_lines_are_indented() -> None:
    assert printable("a\x1b[2J\tb\nc") == "a\\x1b[2J\tb\nc"
    assert log_entry("Traceback:\n  line 3\x1b[2J\nKeyError").splitlines() == [
        "Traceback:",
        "           line 3\\x1b[2J",
        "         KeyError",
    ]
