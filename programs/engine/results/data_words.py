"""The table of a run's data (`data.json`), in words: a name and what is known of it, for report and page.

Decides what stands there, and in which order; what was not counted has no row. Files are named without their folders,
which are no part of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import msgspec

from isthmus.programs.engine.results.words import decimal, percent, size, whole
from isthmus.programs.reading.table import EPOCHS_MAX, has_texts


class _Longest(msgspec.Struct):
    path: str
    document: int
    tokens: int


class _LeftOut(msgspec.Struct):
    reason: str
    files: int
    first: list[str] = []


class _Table(msgspec.Struct):
    """The fields of data.json (`reading.table.DataTable.as_dict`)."""

    files: int
    bytes: int
    tokens: int
    tokens_by_kind: dict[str, int] = {}
    documents: int | None = None
    epochs: float | None = None
    pad_share: float | None = None
    unknown_share: float | None = None
    zero_share: float | None = None
    lost_share: float | None = None
    json_share: float | None = None
    without_text: int | None = None
    longest: _Longest | None = None
    begins_with: list[str] = []
    ends_with: list[str] = []
    beginnings: list[str] = []
    predicted: int | None = None
    documents_by_form: dict[str, int] = {}
    answers_by: list[str] = []
    chats_without_stop: int | None = None
    learned: list[str] = []
    left_out: list[_LeftOut] = []


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


def rows(data: Mapping[str, Any]) -> list[DataRow]:
    """The rows of a table; ValueError for data that are none."""
    return list(_rows(msgspec.convert(data, _Table)))


def _rows(table: _Table) -> Iterator[DataRow]:
    yield DataRow("files", f"{whole(table.files)}, {size(table.bytes)}")
    if table.documents is not None:
        empty = f", {whole(table.without_text)} without text" if table.without_text else ""
        yield DataRow("documents", f"{whole(table.documents)}{empty}")
    yield DataRow("tokens", whole(table.tokens))
    yield from _what_is_learned(table)
    if table.epochs is not None:
        is_odd = table.epochs > EPOCHS_MAX
        more = f", more than {EPOCHS_MAX}" if is_odd else ""
        yield DataRow("budget", f"{decimal(table.epochs, 2)} passes over them{more}", is_odd)
    yield DataRow("by kind", ", ".join(_by_kind(table.tokens_by_kind)))
    shares = {name: getattr(table, key) for key, name in _SHARES.items()}
    if known := [f"{name}: {percent(share)}" for name, share in shares.items() if share is not None]:
        yield DataRow("shares", ", ".join(known))
    if table.longest is not None:
        where = f"document {whole(table.longest.document)} of {_name(table.longest.path)}"
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
        yield DataRow(f"left out, {each.reason}", f"{', '.join(map(_name, each.first))}{more}")


def _what_is_learned(table: _Table) -> Iterator[DataRow]:
    """What has a loss, where that is not all; of what, and how that is known."""
    if table.predicted is None or table.predicted == table.tokens:
        return
    forms = ", ".join(f"{form}: {whole(count)}" for form, count in table.documents_by_form.items())
    by = f"; answers by {' and '.join(table.answers_by)}" if table.answers_by else ""
    yield DataRow("with a loss", f"{whole(table.predicted)} tokens; {forms}{by}")
    if table.chats_without_stop:
        yield DataRow("chats", f"{whole(table.chats_without_stop)} without a token at which the model stops", True)


def _by_kind(tokens_by_kind: Mapping[str, int]) -> Iterator[str]:
    """The kinds with most tokens, and what the others have."""
    kinds = sorted(tokens_by_kind.items(), key=lambda each: -each[1])
    yield from (f"{kind}: {whole(tokens)}" for kind, tokens in kinds[:KINDS_SHOWN])
    if others := kinds[KINDS_SHOWN:]:
        yield f"{whole(len(others))} others: {whole(sum(tokens for _, tokens in others))}"


def _name(path: str) -> str:
    return PurePath(path).name
