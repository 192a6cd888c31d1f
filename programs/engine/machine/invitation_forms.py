"""The forms in which an invitation comes by mail, chat, environment and secret stores, and the one line of it.

Decides how the text of NAME.invite is found again in what other tools make of it: other line ends and encodings, a byte
order mark, line ends that are spelled out or became spaces, marks of quotation around it or before each line, and
base64. What the text says, `invitations` reads.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from contextlib import suppress
from typing import Any, Final

from isthmus.runtime.errors import ConfigError

TEXT_BYTES_MAX: Final = 1 << 16
DO_COPY: Final = "Copy it again, whole; `isthmus invite` with --line makes one line of it that every tool leaves alone."
_QUOTES: Final = "\"'`\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
_SPELLED: Final = (("\\r\\n", "\n"), ("\\n", "\n"), ("\\r", "\n"), ('\\"', '"'))
_VALUE: Final = re.compile(r"""(?P<key>[a-z_]+)\s*=\s*(?P<value>"(?:[^"\\]|\\.)*"|'[^']*')|\[(?P<table>[a-z]+)\]""")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_=\s-]+")


def line_of(text: str) -> str:
    """The text of an invitation in one line, of letters, digits, - and _."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def document_of(given: bytes, doing: str) -> dict[str, Any]:
    """The document of an invitation in whatever form; ConfigError for what is none."""
    if len(given) > TEXT_BYTES_MAX:
        raise ConfigError(doing, f"at most {TEXT_BYTES_MAX} bytes", f"{len(given)} or more", DO_COPY)
    text = _plain(_decoded(given, doing))
    if "[" not in text and (packed := _unpacked(text)) is not None:
        text = _plain(_decoded(packed, doing))
    found = "nothing"
    try:
        if document := tomllib.loads(text):
            return document
    except tomllib.TOMLDecodeError as fault:
        found = f"none ({fault})"
    if not (document := _scattered(text)):
        raise ConfigError(doing, "the text of an invitation", found, DO_COPY)
    return document


def _decoded(given: bytes, doing: str) -> str:
    try:
        if given.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            return given.decode("utf-16")
        return given.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(doing, "the text of an invitation", f"other bytes ({error.reason})", DO_COPY) from None


def _plain(text: str) -> str:
    """The same with line ends of its own, and nothing around it."""
    text = "\n".join(text.split("\r\n")).replace("\r", "\n").replace("\N{NO-BREAK SPACE}", " ").strip()
    is_quoted = text[:1] in _QUOTES and len(text) > 1
    text = text.strip(_QUOTES).strip() if is_quoted else text
    if "\n" not in text:
        for spelled, meant in _SPELLED:
            text = text.replace(spelled, meant)
    return text


def _unpacked(text: str) -> bytes | None:
    """What base64 of either alphabet holds, in one line or several; None where it is none."""
    if not _BASE64.fullmatch(text):
        return None
    letters = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except binascii.Error:
        return None


def _scattered(text: str) -> dict[str, Any]:
    """The tables and values of a text whose line ends became spaces, behind which a comment hides it, or that has
    others around it or within: no value has white space."""
    document: dict[str, Any] = {}
    for found in _VALUE.finditer(text):
        if table := found["table"]:
            document[table] = {}
        elif document:
            value = "".join(found["value"].split())
            with suppress(json.JSONDecodeError):
                document[next(reversed(document))][found["key"]] = json.loads(f'"{value[1:-1]}"')
    return document
