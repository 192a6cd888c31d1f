"""What others say is shown as text: it moves no cursor, and none of its lines passes for an entry of a log."""

from __future__ import annotations

from isthmus.runtime.errors import log_entry, printable, shortened


def test_an_entry_of_a_log_is_printable_and_its_further_lines_are_indented() -> None:
    assert printable("a\x1b[2J\tb\nc") == "a\\x1b[2J\tb\nc"
    assert log_entry("Traceback:\n  line 3\x1b[2J\nKeyError").splitlines() == [
        "Traceback:",
        "           line 3\\x1b[2J",
        "         KeyError",
    ]


def test_a_text_is_cut_behind_a_whole_word_and_says_so_and_where_the_rest_is() -> None:
    text = "dot_general requires contracting dimensions to have the same shape"
    assert shortened(text, len(text)) == text
    cut = shortened(text, 60, "the log has all of it")
    assert cut == "dot_general requires contracting ... (the log has all of it)"
    assert shortened(text, 62).startswith("dot_general requires")
    assert f"{len(text)} characters" in shortened(text, 62)
    for most in range(30, len(text)):
        whole = shortened(text, most).partition(" ...")[0]
        assert len(shortened(text, most)) <= most
        assert not whole or text[len(whole)] == " " or " " not in whole


def test_what_has_no_blank_is_cut_where_it_has_to_be() -> None:
    cut = shortened("x" * 200, 60, "look there")
    assert len(cut) == 60
    assert cut.endswith("x ... (look there)")
