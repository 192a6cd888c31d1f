"""TOML: files of the user, read whole or refused with a message; values as text, for configuration and references.

The meaning of keys is for the readers. It writes the values of settings (text, numbers, true and false, lists, tables)
and nothing else. None has no form in TOML: a key whose value is None is left out, which means its default.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.runtime.errors import ConfigError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse(text: str) -> Any:
    """The TOML value that `text` is; ValueError if it is none."""
    document = tomllib.loads(f"value = {text}")
    if len(document) != 1:
        raise ValueError(f"one TOML value was expected, not {text!r}")
    return document["value"]


def value(item: Any) -> str:
    """`item` as a TOML value on one line; TypeError if it has no such form."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        return repr(item) if math.isfinite(item) else str(item)
    if isinstance(item, str):
        # JSON escapes are TOML escapes, but JSON leaves DEL unescaped.
        return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(item, list | tuple):
        return f"[{', '.join(value(element) for element in item)}]"
    if isinstance(item, Mapping):
        return f"{{{inline(item)}}}"
    raise TypeError(f"{type(item).__name__} has no form in TOML")


def inline(table: Mapping[str, Any]) -> str:
    """The pairs of an inline table, without its braces."""
    return ", ".join(f"{_key(name)} = {value(item)}" for name, item in table.items() if item is not None)


def document(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A document of one table per section."""
    parts = []
    for name, table in sections.items():
        lines = [f"{_key(key)} = {value(item)}" for key, item in table.items() if item is not None]
        parts.append("\n".join([f"[{_key(name)}]", *lines, ""]))
    return "\n".join(parts)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else value(name)


def read_file(file: Path, what: str, do: str) -> dict[str, Any]:
    """The document in `file`, which is `what` ('the configuration'); ConfigError, with `do`, if there is none."""
    doing = f"Reading {what} {file}"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(doing, "a file", "nothing there", do) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(doing, "a file that can be read", f"{type(error).__name__}: {error}", do) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(doing, "TOML", str(error), "Correct the file there.") from error
