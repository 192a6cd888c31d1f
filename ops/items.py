"""The items that flow between the operators of Decoupled DiLoCo: plain dicts, so that they survive any wire.

Positions count the tokens that one incarnation of a slot has trained. A version is [epoch, count]. Times are integer
nanoseconds of the clock of the host that wrote them; only differences of one host's times mean something.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float32]
"""A fragment's values, one flat float32 vector: the values of its units, each raveled in C order, one after another."""

Version: TypeAlias = list[int]
Kind: TypeAlias = Literal["initial", "recover", "merge", "final", "copy"]
"""What a round is for: the first version of the model, the newest version that learners hold (asked for by a shard that
came back), an ordinary merge, the hand-over at the end. An update of kind 'copy' comes from no round: somebody who only
holds it gives it to learners that may have none."""


class Round(TypedDict):
    """pacer -> merge (port `round`) and, the same item, pacer -> inner-step (port `pull`).

    `members` are [slot, incarnation] pairs; `count_min`, `grace` (None: no limit), `required`, `deadline` and `chain`
    (late votes of one of its rounds count in the next; None: they are refused) are what the firing rule of `merge`
    reads. `interval` is H as the pacer has it now, `totals` the progress of the whole run.
    """

    round: int
    fragment: int
    attempt: int
    kind: Kind
    members: list[list[int]]
    count_min: int
    grace: int | None
    required: list[int]
    deadline: int | None
    chain: int | None
    interval: int
    totals: list[list[int]]


class Capture(TypedDict):
    """inner-step -> fragment-send: the fragment at a boundary, beside the anchor that it left from.

    `values` may still be on its way from the device. `base` and `anchor` are None for the first version. For kind
    'recover' `values` are the anchor itself, with the `clock` that came with it.
    """

    fragment: int
    round: int
    kind: Kind
    slot: int
    incarnation: int
    base: Version | None
    begin: int
    end: int
    steps: int
    clock: list[list[int]]
    values: Any
    anchor: Vector | None


class Answer(TypedDict):
    """fragment-send -> merge: an outer gradient (of kinds 'initial' and 'recover', the values themselves), its account.

    Tokens (begin, end] were trained since the adoption of version `base`, in `steps` inner steps. `norms` has the
    gradient's Euclidean norm per unit, float32.
    """

    fragment: int
    round: int
    kind: Kind
    slot: int
    incarnation: int
    base: Version | None
    begin: int
    end: int
    steps: int
    clock: list[list[int]]
    gradient: Vector
    norms: Vector


class Merging(TypedDict):
    """What is told of one merge to everybody who wants to know: who contributed and why it closed when it did.

    `version` is None where nothing was merged. `refused` has [slot, why] of answers that did not count, `shortened`
    [slot, share] of those that were too long. `merged_tokens` counts, as [slot, tokens], everything of this fragment
    that was merged so far; `merges` and `votes` count the merges of kind 'merge', in this `epoch` of the shard, and
    their contributors.
    Times are those of the shard's clock.
    """

    shard: int
    epoch: int
    round: int
    fragment: int
    kind: Kind
    version: Version | None
    voters: list[int]
    weights: list[float]
    left_out: list[int]
    refused: list[list[Any]]
    shortened: list[list[Any]]
    reason: str
    opened_at: int
    quorum_at: int
    closed_at: int
    published_at: int
    merged_tokens: list[list[int]]
    merges: int
    votes: int


class Gradient(TypedDict):
    """merge -> outer-step. `direction` None: nothing to merge; kinds 'initial' and 'recover' hold values in it."""

    fragment: int
    round: int
    kind: Kind
    version: Version | None
    direction: Vector | None
    scale: Vector | None
    clock: list[list[int]]
    totals: list[list[int]]
    merging: Merging


class Update(TypedDict):
    """outer-step -> inner-step, evaluator: the published values of a fragment.

    `clock` is [slot, incarnation, position]: up to which token each slot's work is in it; `totals` the run's progress.
    """

    fragment: int
    version: Version
    kind: Kind
    values: Vector
    clock: list[list[int]]
    totals: list[list[int]]


class Final(TypedDict):
    """outer-step -> recorder, once per fragment: the trained model, by names of units ('head', 'embedding[0:64]')."""

    fragment: int
    version: Version
    tensors: dict[str, npt.NDArray[np.float32]]


class Progress(TypedDict):
    """inner-step -> pacers: what they decide by. `phase` is one of ready, stepping, final.

    `step_time` is a moving average in nanoseconds, 0 before the second step; `delay_steps` the inner steps between the
    last answer and the adoption of what came of it; `epochs` those of the versions that it holds, by fragment, 0 where
    it holds none; `totals` the progress that this learner knows of, its own included: [slot, incarnation, tokens]
    triples.
    """

    slot: int
    incarnation: int
    phase: Literal["ready", "stepping", "final"]
    step: int
    tokens: int
    step_time: int
    delay_steps: int
    epochs: list[int]
    totals: list[list[int]]


class Report(Progress):
    """inner-step -> recorder: everything, for those who watch; also on port `progress` of a body without a `report`.

    `stepping` is the time since its first step began, `waited` the time in which it was kept from stepping, both in
    nanoseconds; `loss` is the mean since the last report (nan before the first step); `staleness` the most inner steps
    since an adoption; `accounts` holds, per fragment, [merged, overlapped, refused, lost, pending].
    """

    stepping: int
    loss: float
    staleness: int
    sick: bool
    accounts: list[list[int]]
    versions: list[Version]
    bytes_sent: int
    bytes_received: int
    waited: int
    device_kind: str


class Held(TypedDict):
    """hold -> pacers and recorder: of which fragments a host has a version, and of which one that was merged; `holder`
    is its role."""

    holder: str
    fragments: list[int]
    merged: list[int]


class Control(TypedDict):
    """recorder -> pacer, and, where there is no pacer, recorder -> inner-step (port `progress`).

    `tokens` is the budget of the run, `published` the newest version of each fragment that is known to be merged, as
    [fragment, epoch, count].
    """

    stop: bool
    tokens: int
    totals: list[list[int]]
    published: list[list[int]]
