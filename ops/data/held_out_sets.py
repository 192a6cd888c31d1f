"""Named held-out sets of text, each evaluated beside the held-out part of a run's data.

Decides which windows of a set an evaluation has: as of the held-out part (`held_out.apart`), so many at most, and none
overlaps. A set is read by whoever evaluates, when its first batch is made: a learner never reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, final

from isthmus.ops.data.batches import At, Batch, Windows
from isthmus.ops.data.corpus import DataError, TokenIds
from isthmus.ops.data.held_out import WINDOWS

SHARE_MIN: Final = 8
"""Windows of a set at least, where many share what a small model's sets have together."""


@final
@dataclass(frozen=True, slots=True)
class TextSet:
    """The batches of a set of text, each time that it is called; `read` returns all of its ids.

    `windows` are those of the run's own data, of whose form these are; `most` of them are made.
    """

    name: str
    read: Callable[[], TokenIds]
    windows: Windows
    most: int

    def __call__(self) -> Iterator[Batch]:
        """The batches, made one at a time. DataError for a set that cannot be evaluated on."""
        windows = self._cut()
        return (windows.batch(At(0, 0, position, "evaluation")) for position in range(windows.evaluation_batches))

    @property
    def tokens(self) -> int:
        """How many tokens an evaluation of it predicts, or, where some are marked, at most."""
        extract = self._cut().extract
        assert extract is not None, "these do not overlap"
        return extract.windows * extract.tokens

    def _cut(self) -> Windows:
        doing = f"Reading the held-out set {self.name!r} of task.sets"
        length = self.windows.length
        try:
            ids = self.read()
            if len(ids) < length:
                do = "Give it more text, leave it out, or make task.context smaller."
                expected = f"at least {length} tokens, those of one window and the one before it"
                raise DataError(doing, expected, str(len(ids)), do)
            corpus = replace(self.windows.corpus, evaluation=ids)
            is_marked = self.windows.is_marked or ids.are_marked
            return replace(self.windows, corpus=corpus, held_out=self.most, is_marked=is_marked)
        except DataError as error:
            raise DataError(doing, error.expected, error.found, error.remedy) from error


def text_sets(
    paths: Mapping[str, str], read: Callable[[str], Callable[[], TokenIds]], windows: Windows
) -> dict[str, TextSet]:
    """The sets at these paths, by name. Where the evaluation of the run's own data has windows that may overlap, of a
    small model, all sets together have about as many."""
    own = windows.held_out
    most = max(SHARE_MIN, WINDOWS // max(len(paths), 1)) if own is None else own
    return {name: TextSet(name, read(path), windows, most) for name, path in paths.items()}
