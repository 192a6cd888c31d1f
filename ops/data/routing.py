"""Which shard a document belongs to: a router, made once from training documents, kept as a file, the same everywhere.

    router = by_content(train, shards=4, seed=0, data=digest)     # or by_source, at_random
    router.shards_of(documents)                                   # int64[documents], training and held-out ones alike
    router = by_losses(losses, train, seed=0, data=digest)        # losses[documents, paths]: nats of a document by path
    encoded(router), decoded(data)                                # the bytes of a file, and back
    paths_by_loss(losses, first)                                  # losses[..., paths, bytes]: the path of each chunk

*Content.* The features of a document are counts of hashed 1- to 3-grams of its first 64 tokens: their roots, of unit
length, as integers. Each shard has a row of weights and a price; a document goes where price less weights times
features is least. By k-means the weights are centres along principal directions, by losses they are those of a softmax
regression that predicts the best path (DiPaCo, arXiv 2403.10616, sections 2.4.1 and 2.4.2). Prices make shards nearly
equal in training tokens, and are kept for held-out documents; unlike a capacity they treat each document alone. All
that an assignment computes is integers below 2^53, so that it is the same on every machine, whatever the order of its
sums.

*Source.* The sources that the data tell are packed into shards, the largest first into the emptiest. *Random*: by a
hash of the seed and the contents, the control.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, final

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from isthmus.ops.data.corpus import READING, DataError, key_of
from isthmus.ops.data.documents import Documents, Integers

By: TypeAlias = Literal["content", "source", "random"]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]

SHARDS_MAX: Final = 256
HEAD_TOKENS: Final = 64
FEATURES: Final = 1024
_ORDERS: Final = (1, 2, 3)
_HASH_BITS: Final = 64 - FEATURES.bit_length() + 1
# Odd constants of 64 bits (SplitMix64, MurmurHash3): multiply-shift hashing needs no more.
_FACTORS: Final = np.array((0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB), np.uint64)
_ORDER_SEEDS: Final = np.array((0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0x2545F4914F6CDD1D), np.uint64)
_UNIT: Final = 255
"""Length of a document's features: their rounding is a twentieth of one of 64 different 3-grams."""
_WEIGHT_UNIT: Final = 256
_BLOCK: Final = 1024
SAMPLE_MAX: Final = 8192
"""Documents of which centres and weights are made: 64 MB of features."""
_PRICED_MAX: Final = 65_536
"""Documents of which prices are made."""
_BEGINNINGS: Final = 32
_REFINED: Final = 6
_PILOT_MAX: Final = 1024
"""Of which one in five comes to the best centres, on text of four parts."""
_DIRECTIONS: Final = 32
_ROUNDS_MAX: Final = 40
_PASSES_MAX: Final = 64
_IMBALANCE: Final = 0.002

FORMAT: Final = 1
FILE_BYTES_MAX: Final = 64 << 20
_MAGIC: Final = b"isthmus-router\n"
_DIGEST_BYTES: Final = 16
NAMES_MAX: Final = 100_000


@final
@dataclass(frozen=True)
class Router:
    """A rule that gives each document to a shard."""

    by: By
    shards: int
    """How many there are."""
    seed: int
    data: str
    """The digest of the documents of which it was made, before the split (`SplitDocuments.digest`)."""
    weights: Integers
    """int64[shards, FEATURES], of content, else empty."""
    prices: Integers
    """int64[shards], of content, else empty."""
    sources: tuple[tuple[str, int], ...] = ()
    """The shard of each source, else empty."""
    column: str = "text"
    """The field of rows that has the text."""
    source_column: str | None = None
    """The field of rows that has the source, if it was asked for."""

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of all that it is."""
        return xxhash.xxh3_64_hexdigest(_body(self))

    def check_data(self, digest: str) -> None:
        """DataError if it was made of other documents than those of this digest."""
        if self.data != digest:
            do = "Name the data of the router, or make one of this data: isthmus route."
            actual = f"one of others ({self.data[:8]}, and these are {digest[:8]})"
            raise DataError(READING, "a router of the documents of this data", actual, do)

    def shards_of(self, documents: Documents) -> Integers:
        """The shard of each document, int64[documents]. DataError for a source that it does not have."""
        if self.by == "content":
            nearest: Integers = np.argmin(self.prices - _scores(documents, self.weights), axis=1)
            return nearest
        if self.by == "source":
            table = dict(self.sources)
            unknown = [documents.names[label] for label in np.unique(documents.labels)]
            unknown = [name for name in unknown if name not in table]
            if unknown:
                do = "Name the data as it was named for `isthmus route`, or route it again."
                raise DataError(ROUTING, "the sources of the router", f"{unknown[0]!r}", do)
            shards: Integers = np.array([table.get(name, 0) for name in documents.names], np.int64)
            return shards[documents.labels]
        keys = (f"{self.seed} {key_of(documents[index])}".encode() for index in range(len(documents)))
        return np.array([xxhash.xxh3_64_intdigest(key) % self.shards for key in keys], np.int64)


ROUTING: Final = "Routing documents to shards"
_NOTHING: Final = np.zeros(0, np.int64)


def by_content(train: Documents, shards: int, seed: int, data: str) -> Router:
    """A router by k-means on the features of documents. DataError for fewer documents than shards.

    Distances are along the 32 principal directions of the features, each divided by the fourth root of its variance, so
    that many grams that come together count as fewer. Of 32 beginnings by k-means++ on 1,024 documents the best six go
    on with all, and the best counts; in each, documents are given out by distance and price, and centres are means,
    until nothing changes.
    """
    _check_enough(train, shards)
    rng = np.random.default_rng(seed)
    sample = train.those(_drawn(len(train), SAMPLE_MAX, rng))
    features = np.concatenate(list(_features(sample)))
    directions = _directions(features)
    points = np.rint(features @ directions)
    sizes = sample.lengths
    few = _drawn(len(points), _PILOT_MAX, rng)
    pilots = [_k_means(points[few], sizes[few], _beginning(points[few], shards, rng)) for _ in range(_BEGINNINGS)]
    best = sorted(pilots, key=lambda each: each[0])[:_REFINED]
    centres = min((_k_means(points, sizes, pilot[1]) for pilot in best), key=lambda each: each[0])[1]
    # A projection is linear: what a centre weighs a point, its weights weigh features.
    weights = _as_integers(centres @ directions.T)
    return Router("content", shards, seed, data, weights, _prices_of(train, weights, rng))


def by_source(train: Documents, shards: int, seed: int, data: str) -> Router:
    """A router by the sources of documents. DataError for fewer sources than shards."""
    sizes = np.bincount(train.labels, train.lengths, len(train.names)).astype(np.int64)
    if len(sizes) < shards:
        do = "Set fewer shards, name several folders, or a column of rows with --source-column; or route by content."
        actual = f"{len(sizes)}: {', '.join(train.names[:4])}{', ...' if len(sizes) > 4 else ''}"
        raise DataError(ROUTING, f"at least {shards} sources, one for each shard", actual, do)
    if len(sizes) > NAMES_MAX:
        do = "Route by content, or by a field of fewer values."
        raise DataError(ROUTING, f"at most {NAMES_MAX:,} sources", f"{len(sizes):,}", do)
    loads = np.zeros(shards, np.int64)
    sources: list[tuple[str, int]] = []
    for label in sorted(range(len(sizes)), key=lambda label: (-sizes[label], train.names[label])):
        shard = int(np.argmin(loads))
        # A source without training documents counts, too, so that no shard stays without one.
        loads[shard] += max(int(sizes[label]), 1)
        sources.append((train.names[label], shard))
    return Router("source", shards, seed, data, _NOTHING, _NOTHING, tuple(sorted(sources)))


def at_random(train: Documents, shards: int, seed: int, data: str) -> Router:
    """A router that gives documents out at random, whatever they are. DataError for fewer documents than shards."""
    _check_enough(train, shards)
    return Router("random", shards, seed, data, _NOTHING, _NOTHING)


def by_losses(losses: Floats, train: Documents, seed: int, data: str) -> tuple[Router, float]:
    """A router that sends documents to the path that predicts them best, and the share of documents for which it does.

    `losses` [documents, paths]: the mean loss of each training document by each path, in nats. Prices on the losses
    first make the best paths' shares of tokens equal; a regression on the features then predicts these paths.
    DataError for losses of another shape, or that are not finite.
    """
    losses = np.asarray(losses, np.float64)
    if losses.ndim != 2 or len(losses) != len(train) or not losses.shape[1] or not np.isfinite(losses).all():
        actual = f"{losses.dtype} of shape {list(losses.shape)}" + ("" if np.isfinite(losses).all() else ", not finite")
        do = "Give the losses of these documents, in their order."
        raise DataError(ROUTING, f"finite losses [{len(train)}, paths]", actual, do)
    shards = losses.shape[1]
    _check_enough(train, shards)
    rng = np.random.default_rng(seed)
    scores = -np.rint(losses * _LOSS_UNIT).astype(np.int64)
    labels = np.argmin(_balancing(scores, train.lengths) - scores, axis=1)
    chosen = _drawn(len(train), SAMPLE_MAX, rng)
    features = np.concatenate(list(_features(train.those(chosen))))
    weights = _regression(features, labels[chosen], shards)
    router = Router("content", shards, seed, data, weights, _prices_of(train, weights, rng))
    return router, float(np.mean(router.shards_of(train) == labels))


_LOSS_UNIT: Final = 1 << 20


def encoded(router: Router) -> bytes:
    """A router as a file."""
    body = _body(router)
    return _MAGIC + xxhash.xxh3_128_digest(body) + body


def decoded(data: bytes) -> Router:
    """The router of a file's bytes; ValueError, with the reason, for anything else."""
    begin = len(_MAGIC) + _DIGEST_BYTES
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin as one")
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"more than {FILE_BYTES_MAX:,} bytes")
    if xxhash.xxh3_128_digest(body := data[begin:]) != data[len(_MAGIC) : begin]:
        raise ValueError("it is damaged")
    if (version := msgspec.msgpack.decode(body, type=_Version).format) != FORMAT:
        raise ValueError(f"format {version}, not {FORMAT}; a newer isthmus may read it")
    kept = msgspec.msgpack.decode(body, type=_Kept)
    is_content = kept.by == "content"
    weights = np.frombuffer(kept.weights, "<i4").astype(np.int64)
    prices = np.array(kept.prices, np.int64)
    size = kept.shards * FEATURES if is_content else 0
    if not 1 <= kept.shards <= SHARDS_MAX or len(weights) != size or len(prices) != kept.shards * is_content:
        raise ValueError(f"weights and prices of other than {kept.shards} shards")
    if np.abs(prices).max(initial=0) > _SCORE_MAX or (kept.by == "source") != bool(kept.sources):
        raise ValueError("prices or sources out of range")
    if any(not 0 <= shard < kept.shards for _, shard in kept.sources) or len(kept.sources) > NAMES_MAX:
        raise ValueError("sources of shards that it does not have")
    return Router(
        kept.by,
        kept.shards,
        kept.seed,
        kept.data,
        weights.reshape(-1, FEATURES) if is_content else _NOTHING,
        prices,
        tuple(kept.sources),
        kept.column,
        kept.source_column,
    )


class _Version(msgspec.Struct, frozen=True):
    format: int


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A router in its file: `weights` little-endian int32[shards, FEATURES]."""

    format: int
    by: By
    shards: int
    seed: int
    data: str
    weights: bytes
    prices: list[int]
    sources: list[tuple[str, int]]
    column: str
    source_column: str | None


_WEIGHT_MAX: Final = (1 << 31) - 1
_SCORE_MAX: Final = 1 << 52


def _body(router: Router) -> bytes:
    sources = [(name, shard) for name, shard in router.sources]
    weights = router.weights.astype("<i4").tobytes()
    texts = router.column, router.source_column
    kept = (FORMAT, router.by, router.shards, router.seed, router.data, weights, router.prices.tolist(), sources)
    return msgspec.msgpack.encode(_Kept(*kept, *texts))


def paths_by_loss(losses: Floats, first: npt.ArrayLike, *, chunk: int = 64, again: bool = True) -> Integers:
    """The path of each chunk of documents, int64[..., chunks], by what is known before the chunk is read.

    The first chunk goes to path `first`, int[...], the router's; each other one to the path whose loss on the chunk
    before it is least, or, unless `again`, on the first chunk. `losses`, float[..., paths, bytes], are those of each
    byte by each path; the last chunk may be shorter. Equal losses keep the path of the chunk before.
    """
    losses = np.asarray(losses)
    starts = np.arange(0, losses.shape[-1], chunk)
    sums = np.add.reduceat(losses, starts, axis=-1, dtype=np.float64)
    paths = [np.asarray(first, np.int64)]
    for index in range(len(starts) - 1):
        before = sums[..., index if again else 0]
        last = np.take_along_axis(before, paths[-1][..., None], -1)[..., 0]
        paths.append(np.where(before.min(-1) < last, before.argmin(-1), paths[-1]))
    return np.stack(paths, -1)


def losses_along(losses: Floats, paths: Integers, *, chunk: int = 64) -> Floats:
    """The loss of each byte, float[..., bytes], where chunk `c` of a document is read by `paths[..., c]`.

    `losses` is float[..., paths, bytes], `paths` int64[..., chunks].
    """
    each = np.repeat(paths, chunk, axis=-1)[..., : losses.shape[-1]]
    return np.take_along_axis(losses, each[..., None, :], axis=-2)[..., 0, :]


def _check_enough(train: Documents, shards: int) -> None:
    if len(train) < shards:
        do = "Give more data, or set fewer shards."
        raise DataError(ROUTING, f"at least {shards} documents for training, one for each shard", str(len(train)), do)


def _drawn(count: int, most: int, rng: np.random.Generator) -> Integers:
    """Numbers below `count`, all or so many, ascending."""
    return np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))


def _features(documents: Documents) -> Iterator[npt.NDArray[np.float64]]:
    """The features of documents, in blocks [documents, FEATURES] of integers from 0 to 255."""
    for start in range(0, len(documents), _BLOCK):
        heads = documents.those(np.arange(start, min(start + _BLOCK, len(documents)))).heads(HEAD_TOKENS)
        rows = np.arange(len(heads))[:, None] * FEATURES
        counts = np.zeros(len(heads) * FEATURES, np.int64)
        for order in _ORDERS:
            grams = heads.shape[1] - order + 1
            parts = [heads[:, offset : offset + grams] for offset in range(order)]
            hashes = np.full(parts[0].shape, _ORDER_SEEDS[order - 1])
            for part, factor in zip(parts, _FACTORS, strict=False):
                hashes += (part.astype(np.uint64) + np.uint64(1)) * factor
                # Sums of products alone would give `ab` and `ba` related buckets.
                hashes ^= hashes >> np.uint64(29)
                hashes *= _FACTORS[1]
            places = rows + (hashes >> np.uint64(_HASH_BITS)).astype(np.int64)
            counts += np.bincount(places[parts[-1] >= 0], minlength=len(counts))
        roots = np.sqrt(counts.reshape(len(heads), FEATURES))
        # The root of the number of grams is the length of the roots of their counts.
        lengths = np.sqrt(np.maximum(counts.reshape(len(heads), FEATURES).sum(1), 1))
        yield np.rint(roots * _UNIT / lengths[:, None])


def _scores(documents: Documents, weights: Integers) -> Integers:
    """Weights times features, int64[documents, shards]."""
    columns = weights.T.astype(np.float64)
    scores = [np.empty((0, len(weights)))] + [block @ columns for block in _features(documents)]
    return np.concatenate(scores).astype(np.int64)


def _prices_of(train: Documents, weights: Integers, rng: np.random.Generator) -> Integers:
    priced = train.those(_drawn(len(train), _PRICED_MAX, rng))
    return _balancing(_scores(priced, weights), priced.lengths)


def _directions(features: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The principal directions of features as columns [FEATURES, directions], scaled so that points have 255 units."""
    means = features.mean(0)
    variances, axes = np.linalg.eigh(features.T @ features / len(features) - np.outer(means, means))
    variances, axes = variances[-_DIRECTIONS:], axes[:, -_DIRECTIONS:]
    are_there = variances > max(variances[-1], _UNIT) * 1e-6
    directions: npt.NDArray[np.float64] = axes[:, are_there] / variances[are_there] ** 0.25
    spread = np.sqrt((variances[are_there] ** 0.5).sum())
    directions *= _UNIT / max(float(spread), 1e-12)
    return directions


def _as_integers(weights: npt.NDArray[np.float64]) -> Integers:
    """Weights, float[shards, FEATURES], as integers of at most 2^23; the least loss of what they tell apart."""
    return np.rint(weights * ((_WEIGHT_MAX >> 8) / max(float(np.abs(weights).max(initial=0)), 1e-12))).astype(np.int64)


def _k_means(points: npt.NDArray[np.float64], sizes: Integers, centres: Integers) -> tuple[int, Integers]:
    """The sum of squared distances of points [count, axes], and the centres, int64[shards, axes], in units of 1/256."""
    shards = len(centres)
    prices: Integers | None = None
    labels = np.full(len(points), -1)
    squares = (points * points).sum(1)
    for _ in range(_ROUNDS_MAX):
        scores = (points @ (centres.T.astype(np.float64))).astype(np.int64)
        prices = _balancing(scores, sizes, prices, passes=2)
        before, labels = labels, np.argmin(prices - scores, axis=1)
        if np.array_equal(before, labels):
            break
        counts = np.bincount(labels, minlength=shards)
        sums = np.stack([points[labels == shard].sum(0) for shard in range(shards)])
        means = np.rint(sums * _WEIGHT_UNIT / np.maximum(counts, 1)[:, None]).astype(np.int64)
        centres = np.where(counts[:, None] > 0, means, centres)
    own = centres[labels] / _WEIGHT_UNIT
    distance = squares.sum() - 2 * (points * own).sum() + (own * own).sum()
    return int(np.rint(distance)), centres


def _beginning(points: npt.NDArray[np.float64], shards: int, rng: np.random.Generator) -> Integers:
    """Centres by k-means++ (Arthur and Vassilvitskii, 2007): each a document, drawn by its distance from the others."""
    centres = [points[int(rng.integers(len(points)))]]
    squares = (points * points).sum(1)
    nearest = np.full(len(points), np.inf)
    for _ in range(shards - 1):
        last = centres[-1]
        nearest = np.minimum(nearest, np.maximum(squares - 2 * (points @ last) + last @ last, 0.0))
        total = nearest.sum()
        chances = nearest / total if total else None
        centres.append(points[int(rng.choice(len(points), p=chances))])
    return (np.stack(centres) * _WEIGHT_UNIT).astype(np.int64)


def _balancing(
    scores: Integers, sizes: Integers, prices: Integers | None = None, *, passes: int = _PASSES_MAX
) -> Integers:
    """Prices, int64[shards], at which the shards of least price less score have nearly equal sums of `sizes`.

    `scores` int64[documents, shards], `sizes` int64[documents]. Each pass sets the price of one shard after the other
    to where it would have its share, the others' prices given: ascent by coordinates of the dual of the transport
    problem. The best prices of all passes count: documents that score alike everywhere move together, so equality may
    not exist.
    """
    shards = scores.shape[1]
    prices = np.zeros(shards, np.int64) if prices is None else prices.copy()
    if shards == 1:
        return prices
    share = sizes.sum() / shards
    best, best_prices = np.inf, prices.copy()
    for _ in range(passes):
        for shard in range(shards):
            others = prices - scores
            own = others[:, shard].copy()
            others[:, shard] = np.iinfo(np.int64).max
            # A document comes as long as the price is raised by less than this.
            margins = others.min(1) - own
            order = np.argsort(-margins, kind="stable")
            sums = np.cumsum(sizes[order])
            count = min(int(np.searchsorted(sums, share)) + 1, len(order) - 1)
            prices[shard] += (margins[order[count - 1]] + margins[order[count]]) // 2
        prices -= prices.min()
        held = np.bincount(np.argmin(prices - scores, axis=1), sizes, shards)
        imbalance = np.abs(held / share - 1).max()
        if imbalance < best:
            best, best_prices = imbalance, prices.copy()
        if best <= _IMBALANCE:
            break
    return best_prices


_REGRESSION_STEPS: Final = 300
_REGRESSION_RATE: Final = 0.5
_REGRESSION_DECAY: Final = 1e-3


def _regression(features: npt.NDArray[np.float64], labels: Integers, shards: int) -> Integers:
    """The weights of a softmax regression of labels on features, as integers, int64[shards, FEATURES].

    Full gradients with momentum on the mean cross-entropy and a decay of weights, in units of the features' length.
    """
    inputs = features / _UNIT
    targets = np.eye(shards)[labels]
    weights = np.zeros((shards, FEATURES))
    offsets = np.zeros(shards)
    speed, offset_speed = np.zeros_like(weights), np.zeros_like(offsets)
    for _ in range(_REGRESSION_STEPS):
        logits = inputs @ weights.T + offsets
        odds = np.exp(logits - logits.max(1, keepdims=True))
        errors = odds / odds.sum(1, keepdims=True) - targets
        speed = 0.9 * speed - _REGRESSION_RATE * (errors.T @ inputs / len(inputs) + _REGRESSION_DECAY * weights)
        offset_speed = 0.9 * offset_speed - _REGRESSION_RATE * errors.mean(0)
        weights, offsets = weights + speed, offsets + offset_speed
    # Prices take the place of the offsets.
    return _as_integers(weights)
