"""The table of data (`data.json`), in words: a name and what is known of it, for report, page and terminal.

Decides what stands there, and in which order; what was not counted has no row. Of a run, files are named without their
folders, which are no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.results.words import decimal, percent, size, whole
from isthmus.programs.reading.row_forms import ONE_OF
from isthmus.programs.reading.table import EPOCHS_MAX, MARKS, PREFIXES, DataTable, has_texts
from isthmus.programs.reading.token_progress import MakingProgress


class DataRow(NamedTuple):
    """`is_odd`: what is wrong, if it was not intended."""

    name: str
    text: str
    is_odd: bool = False


KINDS_SHOWN: Final = 12
_SHARES: Final = {
    "pad_share": "pads",
    "unknown_share": "unknown",
    "zero_share": "id 0",
    "lost_share": "characters lost",
    "json_share": "JSON as a whole",
}
_WAYS: Final = {MARKS: "the marks of the chat template", PREFIXES: "what an answer adds to the chat before it"}


def rows(data: Mapping[str, Any]) -> list[DataRow]:
    """The rows of a run's table, for report and page; ValueError for data that are none."""
    return list(_rows(DataTable.read(data), lambda path: PurePath(path).name))


def lines(table: DataTable) -> Iterator[str]:
    """The same of data that are looked at, with their paths, for a terminal."""
    found = list(_rows(table, str))
    if table.cache is not None:
        reason = f" ({table.cache_reason})" if table.cache_reason else ""
        found.append(DataRow("cache", f"tokens {table.cache}{reason}"))
    width = max(len(row.name) for row in found)
    yield from (f"{row.name.ljust(width)}  {row.text}" for row in found)


def brief(table: DataTable) -> Iterator[str]:
    """In a line or two, as a run begins."""
    documents = "" if table.documents is None else f", {_counted(table.documents, 'document')}"
    epochs = "" if table.epochs is None else f"; the budget is {table.epochs:.3g} passes over them"
    yield f"data: {_counted(table.files, 'file')}{documents}, {_counted(table.tokens, 'token')}{epochs}"
    if not table.is_all_predicted:
        yield f"loss on {_what_is_learned(table)}"
    if table.left_out:
        yield "left out of the data: " + ", ".join(f"{each.reason} ({whole(each.files)})" for each in table.left_out)


def _rows(table: DataTable, named: Callable[[str], str]) -> Iterator[DataRow]:
    yield DataRow("files", f"{whole(table.files)}, {size(table.bytes)}")
    if table.documents is not None:
        empty = f", {whole(table.without_text)} without text" if table.without_text else ""
        yield DataRow("documents", f"{whole(table.documents)}{empty}")
    yield DataRow("tokens", whole(table.tokens))
    if not table.is_all_predicted:
        yield DataRow("with a loss", _what_is_learned(table))
    if table.chats_without_stop:
        yield DataRow("chats", f"{whole(table.chats_without_stop)} without a token at which the model stops", True)
    if table.epochs is not None:
        is_odd = table.epochs > EPOCHS_MAX
        more = f", more than {EPOCHS_MAX}" if is_odd else ""
        yield DataRow("budget", f"{decimal(table.epochs, 2)} passes over them{more}", is_odd)
    yield DataRow("by kind", ", ".join(_by_kind(table.tokens_by_kind)))
    shares = {name: getattr(table, key) for key, name in _SHARES.items()}
    if known := [f"{name}: {percent(share)}" for name, share in shares.items() if share is not None]:
        yield DataRow("shares", ", ".join(known))
    if table.longest is not None:
        where = f"document {whole(table.longest.document)} of {named(table.longest.path)}"
        yield DataRow("the longest", f"{whole(table.longest.tokens)} tokens, {where}")
    if table.documents is not None and has_texts(table.documents_by_form):
        begin, end = ("".join(marks) or "nothing" for marks in (table.begins_with, table.ends_with))
        yield DataRow("around a text", f"{begin} before it, {end} behind it")
    for text in table.beginnings:
        yield DataRow("reads", repr(text))
    for text in table.learned:
        yield DataRow("learns", repr(text))
    for each in table.left_out:
        more = f", and {whole(each.files - len(each.first))} more" if each.files > len(each.first) else ""
        yield DataRow(f"left out, {each.reason}", f"{', '.join(map(named, each.first))}{more}")


def _what_is_learned(table: DataTable) -> str:
    """The tokens with a loss, which are not all; of what, and how that is known."""
    forms = ", ".join(_counted(count, ONE_OF.get(form, form), form) for form, count in table.documents_by_form.items())
    by = ", and by ".join(_WAYS.get(each, each) for each in table.answers_by)
    answers = f"; answers by {by}" if by else ""
    return f"{whole(table.predicted)} of {whole(table.tokens)} tokens: {forms}{answers}"


def _counted(count: int, noun: str, several: str = "") -> str:
    return f"{whole(count)} {noun if count == 1 else several or f'{noun}s'}"


def _by_kind(tokens_by_kind: Mapping[str, int]) -> Iterator[str]:
    """The kinds with most tokens, and what the others have."""
    kinds = sorted(tokens_by_kind.items(), key=lambda each: -each[1])
    yield from (f"{kind}: {whole(tokens)}" for kind, tokens in kinds[:KINDS_SHOWN])
    if others := kinds[KINDS_SHOWN:]:
        yield f"{whole(len(others))} others: {whole(sum(tokens for _, tokens in others))}"


def progress_words(progress: MakingProgress) -> str:
    """How far the tokens of the data are."""
    if progress.elsewhere_bytes is not None:
        return f"another process makes the tokens of the data, {size(progress.elsewhere_bytes)} of them so far"
    tokens, done = whole(progress.tokens), f"{whole(progress.files_done)} of {whole(progress.files)} files are done"
    return f"tokens are made of the data, {tokens} so far, {done}"
