"""Routers as files, and the shards that data has by one: what `isthmus route` makes and a run of paths reads.

    route(["parts"], shards=4, out="parts.router")                # a Routed: what shards hold
    corpus = sharded_corpus(["parts"], "parts.router", paths=4)   # a ShardedCorpus; DataErrors are ConfigErrors
    documents = training_documents(["parts"], "parts.router")     # in the order of the losses that `reroute` takes
    reroute(losses, ["parts"], "parts.router", out="second.router")

Decides how documents are read from files and what their sources are called, and refuses what does not fit. The rules
themselves are `ops.data.documents`, `ops.data.routing` and `ops.data.shards`.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from isthmus.ops.data import routing
from isthmus.ops.data.corpus import CorpusFile, DataError, Segment, read, vocabulary_of
from isthmus.ops.data.documents import DOCUMENTS_A_SHARD_MIN, FileDocuments, SplitDocuments, gathered, split_documents
from isthmus.ops.data.routing import FILE_BYTES_MAX, ROUTING, SHARDS_MAX, Floats, Router
from isthmus.ops.data.shards import ShardedCorpus
from isthmus.programs.reading.forms import form_of
from isthmus.programs.reading.found import find
from isthmus.programs.reading.rows import texts_of
from isthmus.runtime.errors import ConfigError, shortened
from isthmus.runtime.system.disk import open_regular
from isthmus.runtime.system.files import put_bytes
from isthmus.runtime.system.refusals import remedy

if TYPE_CHECKING:
    from isthmus.ops.data.documents import Documents

COLUMN: Final = "text"
_ANY_VOCABULARY: Final = (1 << 31) - 1
"""Routing needs no vocabulary: token ids are hashed."""


class ShardContents(NamedTuple):
    """What a shard has: documents and their tokens (bytes, of text), for training and held out."""

    documents: int
    tokens: int
    held_out_documents: int
    held_out_tokens: int


@final
@dataclass(frozen=True)
class Routed:
    """A router that was made."""

    out: str
    """Its file."""
    fingerprint: str
    """16 hex digits of the router."""
    by: str
    seed: int
    unit: str
    documents: int
    """Those of all the data."""
    tokens: int
    """Those of all the data."""
    is_cut: bool
    """Documents were so few that they are pieces of at most 4,096 tokens."""
    shards: tuple[ShardContents, ...]
    """What each has."""
    agreement: float | None = None
    """The share of training documents that the router sends where the losses said; None without losses."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"shards": [shard._asdict() for shard in self.shards]}

    def lines(self) -> Iterator[str]:
        """As text."""
        cut = f", pieces of at most 4 kB: there were fewer than {DOCUMENTS_A_SHARD_MIN} a shard" if self.is_cut else ""
        yield f"{self.documents:,} documents, {self.tokens:,} {self.unit}{cut}"
        yield f"{'shard':>5}  {'documents':>9}  {self.unit:>13}  {'held out':>9}  {self.unit:>11}"
        for shard, each in enumerate(self.shards):
            documents = f"{shard:>5}  {each.documents:>9,}  {each.tokens:>13,}"
            yield f"{documents}  {each.held_out_documents:>9,}  {each.held_out_tokens:>11,}"
        if self.agreement is not None:
            yield f"{self.agreement:.1%} of the documents for training go where their losses say"
        yield f"{self.out}: by {self.by}, seed {self.seed}, fingerprint {self.fingerprint}"


def route(
    data: Sequence[str] = (),
    *,
    shards: int,
    out: str | Path,
    by: str = "content",
    seed: int = 0,
    column: str = COLUMN,
    source_column: str | None = None,
    token_dtype: str = "uint16",
) -> Routed:
    """Make a router of the documents in files and folders, and write it to a new file.

    `by`: "content", "source" or "random". Without `data` it is Python's library. `column` is the field of rows that has
    their text, and `source_column` one that has their source. ConfigError for what cannot be routed.
    """
    _check_shards(shards)
    _check_dtype(token_dtype)
    if not 0 <= seed < 1 << 63:
        raise ConfigError(ROUTING, "a seed from 0 to 2^63 - 1", str(seed), "Change --seed.")
    make = {"content": routing.by_content, "source": routing.by_source, "random": routing.at_random}.get(by)
    if make is None:
        raise ConfigError(ROUTING, "content, source or random", repr(by), "Change --by.")
    if source_column is not None and by != "source":
        do = "Add --by source, or leave --source-column out."
        raise ConfigError(ROUTING, "a column of sources only by source", f"{source_column!r} by {by}", do)
    _check_new(out)
    with _refusals():
        split = _split(tuple(data), find(data, are_rows=True).files, column, source_column, token_dtype, shards)
        router = make(split.train, shards, seed, split.digest)
        router = replace(router, column=column, source_column=source_column)
        contents = _contents(router, split)
    return _written(router, split, contents, data, out)


def reroute(
    losses: Floats,
    data: Sequence[str],
    router: str | Path,
    *,
    out: str | Path,
    seed: int = 0,
    token_dtype: str = "uint16",
) -> Routed:
    """Make a router that sends documents to the path that predicts them best, of a run by `router`.

    `losses` [documents, paths]: the mean loss, in nats, of each of `training_documents(data, router)` by each path.
    ConfigError for losses of another shape, and for a router of other data or of another number of shards.
    """
    _check_new(out)
    _check_dtype(token_dtype)
    before = opened(router)
    with _refusals():
        split = _split_by(data, before, token_dtype)
        made, agreement = routing.by_losses(losses, split.train, seed, split.digest)
        if made.shards != before.shards:
            do = "Give the losses of all paths of the run."
            raise DataError(ROUTING, f"losses of {before.shards} paths, the router's", str(made.shards), do)
        # Documents may be pieces because of the number of shards, so that the new router has the same number.
        made = replace(made, column=before.column)
        contents = _contents(made, split)
    return replace(_written(made, split, contents, data, out), agreement=agreement)


def reroute_from(
    losses: Path | None,
    data: Sequence[str],
    router: Path | None,
    *,
    shards: int,
    out: Path,
    seed: int,
    token_dtype: str,
) -> Routed:
    """`reroute`, with losses in a .npy file. ConfigError where either file is not named, or cannot be read."""
    if losses is None or router is None:
        do = "Name the losses with --from-losses, and the router of the run with --router."
        raise ConfigError("Routing by losses", "losses, and a router", "one of them", do)
    if (found := opened(router).shards) != shards:
        do = f"Set --shards {found}: paths are what they are."
        raise ConfigError("Routing by losses", f"{found} shards, as {router} has", str(shards), do)
    try:
        values = np.load(losses.expanduser(), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        do = "Save them by numpy.save as one array [documents, paths]."
        raise ConfigError(
            f"Reading losses in {losses}", "a .npy file", shortened(str(error), 200), remedy(error, do)
        ) from None
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        do = "Save them by numpy.save as one array [documents, paths]."
        actual = str(getattr(values, "dtype", "several arrays"))
        raise ConfigError(f"Reading losses in {losses}", "an array of floats", actual, do)
    return reroute(values, data, router, out=out, seed=seed, token_dtype=token_dtype)


def training_documents(data: Sequence[str], router: str | Path, *, token_dtype: str = "uint16") -> Documents:
    """The documents for training, over all shards, of data with a router. ConfigError for a router of other data."""
    with _refusals():
        return _split_by(data, opened(router), token_dtype).train


def sharded_corpus(
    data: Sequence[str],
    router: str | Path,
    paths: int,
    *,
    vocabulary: int | None = None,
    token_dtype: str = "uint16",
) -> ShardedCorpus:
    """The shards of data by the router in a file, read once in a process.

    ConfigError for data that cannot be read, and for a router that cannot, or is of other data or of another number of
    shards than `paths`.
    """
    with _refusals():
        sources = find(data, are_rows=True).files
        status = _status(Path(router))
        return _sharded(tuple(data), sources, str(router), status, paths, vocabulary, token_dtype)


def opened(path: str | Path) -> Router:
    """The router in a file; ConfigError for one that cannot be read."""
    _status(Path(path))
    try:
        with open_regular(Path(path)) as file:
            return routing.decoded(file.read(FILE_BYTES_MAX + 1))
    except (OSError, ValueError) as error:
        raise _no_router(path, str(error)) from None


def _no_router(path: str | Path, found: str) -> ConfigError:
    do = "Make one with `isthmus route`."
    return ConfigError(f"Reading the router {path}", "a file of `isthmus route`", found, do)


def _status(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise _no_router(path, error.strerror or str(error)) from None
    if not path.is_file():
        raise _no_router(path, "no file")
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=2)
def _sharded(
    data: tuple[str, ...],
    sources: tuple[CorpusFile, ...],
    router: str,
    _: tuple[int, int],
    paths: int,
    vocabulary: int | None,
    token_dtype: str,
) -> ShardedCorpus:
    size = vocabulary_of(sources, vocabulary)
    before = opened(router)
    if before.shards != paths:
        do = f"Set as many paths, or make another: isthmus route --shards {paths}."
        raise ConfigError(f"Reading the router {router}", f"one of {paths} shards", f"{before.shards}", do)
    split = _split(data, sources, before.column, before.source_column, token_dtype, before.shards, size)
    return ShardedCorpus.of(split, before, size)


def _split_by(data: Sequence[str], router: Router, token_dtype: str) -> SplitDocuments:
    """The documents of data, as a router's. DataError where they are others."""
    split = _split(
        tuple(data), find(data, are_rows=True).files, router.column, router.source_column, token_dtype, router.shards
    )
    router.check_data(split.digest)
    return split


def _split(
    data: tuple[str, ...],
    sources: Sequence[CorpusFile],
    column: str,
    source_column: str | None,
    token_dtype: str,
    shards: int,
    vocabulary: int | None = None,
) -> SplitDocuments:
    """The documents of files. DataError, or ConfigError, for a file that cannot be read."""
    size = vocabulary or vocabulary_of(sources, _ANY_VOCABULARY)
    kind = np.dtype(token_dtype).newbyteorder("<")
    documents = gathered(_file(each, data, size, kind, column, source_column) for each in sources)
    if not len(documents):
        do = "Name other files or folders."
        raise DataError(ROUTING, f"documents in {', '.join(data)}", "none, or empty ones alone", do)
    return split_documents(documents, shards)


def _file(
    file: CorpusFile,
    data: tuple[str, ...],
    vocabulary: int,
    token_dtype: np.dtype[Any],
    column: str,
    source_column: str | None,
) -> FileDocuments:
    """The documents of one file."""
    path = Path(file.path)
    form = form_of(path)
    if not form.has_rows:
        if source_column is not None:
            do = "Leave the file out, or the column: the source is then the folder."
            raise DataError(ROUTING, f"rows with {source_column!r} in each file", file.path, do)
        if form.packed:
            [(text,)] = texts_of(path, {"--column": column}, ROUTING)
            ids: Segment = np.frombuffer(text, np.uint8)
        else:
            ids = read(file, vocabulary, token_dtype)
        return FileDocuments(ids, [len(ids)], [_source(path, data)])
    fields = {**({} if source_column is None else {"--source-column": source_column}), "--column": column}
    rows = list(texts_of(path, fields, ROUTING))
    texts = [row[-1] for row in rows]
    of_all = _source(path, data) if [len(text) for text in texts] == [file.size_bytes] else path.name
    names = [of_all if source_column is None else row[0].decode(errors="replace") for row in rows]
    return FileDocuments(np.frombuffer(b"".join(texts), np.uint8), np.cumsum([*map(len, texts)]).tolist(), names)


def _source(path: Path, data: tuple[str, ...]) -> str:
    """The source of a plain file: of several folders the one in which it is, of one that below it."""
    roots = [Path(each) for each in data] or [Path(sysconfig.get_path("stdlib"))]
    root = next((root for root in roots if root != path and path.is_relative_to(root)), path.parent)
    below = path.relative_to(root).parts
    return below[0] if len(roots) == 1 and len(below) > 1 else root.resolve().name


def _contents(router: Router, split: SplitDocuments) -> tuple[ShardContents, ...]:
    """What each shard has. DataError where one has nothing to train on."""
    sides = []
    for side in (split.train, split.held_out):
        shards = router.shards_of(side)
        sides += [np.bincount(shards, minlength=router.shards)]
        sides += [np.bincount(shards, side.lengths, router.shards).astype(np.int64)]
    rows = np.stack(sides, 1)
    if not rows[:, 0].all():
        do = "Set fewer shards, give more data, or route otherwise (--by, --seed)."
        empty = int(np.flatnonzero(rows[:, 0] == 0)[0])
        raise DataError(ROUTING, "documents for training in every shard", f"none in shard {empty}", do)
    return tuple(ShardContents(*map(int, row)) for row in rows)


def _written(
    router: Router, split: SplitDocuments, contents: tuple[ShardContents, ...], data: Sequence[str], out: str | Path
) -> Routed:
    path = Path(out)
    try:
        put_bytes(path, routing.encoded(router))
    except OSError as error:
        do = "Name another file with --out."
        raise ConfigError(
            f"Writing the router {out}", "a file that can be written", str(error), remedy(error, do)
        ) from None
    sides = split.train, split.held_out
    return Routed(
        str(out),
        router.fingerprint,
        router.by,
        router.seed,
        "tokens" if any(file.holds_tokens for file in find(data, are_rows=True).files) else "bytes",
        sum(map(len, sides)),
        int(sum(side.lengths.sum() for side in sides)),
        split.is_cut,
        contents,
    )


def _check_shards(shards: int) -> None:
    if not 1 <= shards <= SHARDS_MAX:
        raise ConfigError(ROUTING, f"from 1 to {SHARDS_MAX} shards", str(shards), "Change --shards.")


def _check_dtype(token_dtype: str) -> None:
    if token_dtype not in ("uint16", "uint32"):
        raise ConfigError(ROUTING, "uint16 or uint32", repr(token_dtype), "Change --token-dtype.")


def _check_new(out: str | Path) -> None:
    if Path(out).exists():
        do = "Name a new file with --out: a run may need the one that is there."
        raise ConfigError(f"Writing the router {out}", "a new file", "one that is there", do)
    if not Path(out).absolute().parent.is_dir():
        do = "Name another file with --out, or make the folder."
        raise ConfigError(f"Writing the router {out}", "a file that can be written", "no folder for it", do)


@contextmanager
def _refusals() -> Iterator[None]:
    """What is wrong with data is a fault of the request."""
    try:
        yield
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error
