"""TOML files of the user: read whole, or refused with a message. What their keys mean is for whoever reads them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from isthmus.runtime.errors import ConfigError


def read(file: Path, what: str, do: str) -> dict[str, Any]:
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
