"""What a run went on with that was not as before: files of isthmus, of its program and of its task, and settings.

Declared here once. A resume notes an `Alteration` in the books of the run; status, summary, report, `isthmus replay`
and terminal read it there. Sentences are made here alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

Part: TypeAlias = Literal["isthmus", "program", "task"]
"""Whose files: of isthmus itself, of the user's program, and of the task with all that it has imported."""


class FileChange(msgspec.Struct, frozen=True):
    """One file that differs: its digests, '' where there was, or is, none."""

    part: Part
    file: str
    before: str = ""
    after: str = ""


class SettingChange(msgspec.Struct, frozen=True):
    """One setting that differs, with both values."""

    key: str
    before: Any = None
    after: Any = None


class Alteration(msgspec.Struct, frozen=True, kw_only=True):
    """What differs from one resume on."""

    time: float | None = None
    """Seconds from the run's first step to it; None before that."""
    tokens: int | None = None
    """Those in what the run goes on from, in the mean over fragments; None where that is not known."""
    outer_steps: int | None = None
    """The merges in it; None for programs that merge none."""
    versions: Sequence[tuple[int, int, int]] = ()
    """(fragment, epoch, count) of what it goes on from."""
    isthmus: tuple[str, str] = ("", "")
    """Its version before and since; '' where that was not noted."""
    files: Sequence[FileChange] = ()
    are_files_known: bool = True
    """False where the run is from before files were noted: then isthmus or its program differ in some."""
    settings: Sequence[SettingChange] = ()

    @property
    def is_of_sources(self) -> bool:
        """Whether what follows was made by other sources."""
        return bool(self.files) or not self.are_files_known

    @property
    def parts(self) -> list[str]:
        """Whose files differ."""
        return list(dict.fromkeys(each.part for each in self.files)) or ([] if self.are_files_known else ["isthmus"])


FILES_SHOWN_MAX: Final = 12
"""Of each part."""
FILES_IN_LINE_MAX: Final = 3
"""Likewise, where all is one line."""


def lines(alteration: Alteration, *, with_folders: bool = True) -> Iterator[str]:
    """What differs, a line each; of the user's files the folder, too, unless others are to read it."""
    was, now = alteration.isthmus
    if was and now and was != now:
        yield f"isthmus: version {now}, {was} before"
    if not alteration.are_files_known:
        yield "isthmus or the program: other files, which the run has not noted"
    for part in dict.fromkeys(each.part for each in alteration.files):
        files = [each for each in alteration.files if each.part == part]
        whole = with_folders or part == "isthmus"
        named = [(each.file if whole else each.file.rpartition("/")[2], _how(each)) for each in files]
        yield from (f"{part}: {name}{how}" for name, how in named[:FILES_SHOWN_MAX])
        if len(files) > FILES_SHOWN_MAX:
            yield f"{part}: and {len(files) - FILES_SHOWN_MAX} more files"
    yield from (f"{each.key}: {_value(each.after)}, {_value(each.before)} before" for each in alteration.settings)


def named(files: Sequence[FileChange]) -> str:
    """Files that have changed, behind what is found; '' for none."""
    told = list(lines(Alteration(files=files)))
    return f" ({'; '.join(told)})" if told else ""


def _how(change: FileChange) -> str:
    return " is new" if not change.before else " is gone" if not change.after else ""


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def since(alteration: Alteration) -> str:
    """From where on, in words: 'outer step 14 on'."""
    if alteration.outer_steps is not None:
        return f"outer step {alteration.outer_steps:,} on"
    return "its beginning on" if alteration.tokens is None else f"{alteration.tokens:,} tokens on"


def headline(alteration: Alteration, *, with_folders: bool = True) -> str:
    """An alteration in one line; of many files only how many."""
    brief, many = list[FileChange](), list[str]()
    for part in dict.fromkeys(each.part for each in alteration.files):
        files = [each for each in alteration.files if each.part == part]
        brief += files if len(files) <= FILES_IN_LINE_MAX else []
        many += [f"{part}: {len(files)} files"] if len(files) > FILES_IN_LINE_MAX else []
    told = lines(msgspec.structs.replace(alteration, files=brief), with_folders=with_folders)
    return f"from {since(alteration)}: {'; '.join([*many, *told])}"


def read_all(figures: Mapping[str, Any]) -> list[Alteration]:
    """Those in a status or a summary; none where these are of another form."""
    try:
        return msgspec.convert(figures.get("alterations", []), list[Alteration])
    except msgspec.ValidationError:
        return []


def as_data(alterations: Iterable[Alteration]) -> list[dict[str, Any]]:
    """They, for JSON."""
    return [msgspec.to_builtins(each) for each in alterations]
