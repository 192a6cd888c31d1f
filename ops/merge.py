"""The merge node: one firing per closed round, from answers to one outer gradient.

It refuses what the token accounts refuse, what is not finite, what is not the sender's own and what is out of all
proportion (`voices`), weighs the rest by tokens * (tokens / steps), merges in slot order, and books what was merged.
The quorum decided which answers came into the round; what the merged gradient does to the parameters is outer-step's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from isthmus.ops.accounts import FragmentAccount, weight
from isthmus.ops.fragment import Fragment
from isthmus.ops.items import Answer, Gradient, Merging, Round
from isthmus.ops.voices import Voices, are_own, length

if TYPE_CHECKING:
    from types import ModuleType

    from isthmus.ops.merging import Merged


class Merge:
    """A round and its answers in, Gradient out; `method` is 'rda' or 'average'; `bounded`: one learner's answer counts
    only as far as it is in proportion to others."""

    outputs = ("gradient",)

    def __init__(
        self, fragments: Sequence[Fragment], *, method: Literal["rda", "average"], bounded: bool = True
    ) -> None:
        self._fragments = fragments
        self._method, self._is_bounding = method, bounded
        self._accounts: dict[int, FragmentAccount] = {}
        self._voices: dict[int, Voices] = {}
        self._epoch = self._shard = self._merges = self._votes = 0

    def open(self, context: Any) -> None:
        """Load the kernels before the first round closes; whoever only builds the graph does without them."""
        from isthmus.ops import merging

        self._shard, self._epoch = context.member.replica.slot, context.member.incarnation
        merging.warm()
        self._merging: ModuleType = merging

    def __call__(
        self, round: Round, answer: Mapping[Any, Answer], decision: Mapping[str, Any] | None = None
    ) -> dict[str, Gradient]:
        """The merged outer gradient, or one without direction where nothing could be merged."""
        merging_record = self._record(round, decision or {})
        answers = sorted(_own(answer, merging_record), key=lambda vote: vote["slot"])
        if round["kind"] in ("initial", "recover"):
            return {"gradient": self._begin(round, answers, merging_record)}
        accepted = []
        for vote in answers:
            refusal = self._refusal(round, vote)
            if refusal is None:
                accepted.append(vote)
            else:
                merging_record["refused"].append([vote["slot"], refusal])
        return {"gradient": self._merge(round, self._bounded(round, accepted, merging_record), merging_record)}

    def _bounded(self, round: Round, accepted: list[Answer], record: Merging) -> list[Answer]:
        """The same answers, those that are too long shortened, without those that are out of all proportion."""
        if not self._is_bounding:
            return accepted
        voices = self._voices.setdefault(round["fragment"], Voices())
        shares = voices.shares([length(vote["norms"]) for vote in accepted])
        bounded: list[Answer] = []
        for vote, share in zip(accepted, shares, strict=True):
            if share == 0.0:
                record["refused"].append([vote["slot"], "out of proportion"])
                continue
            if share < 1.0:
                record["shortened"].append([vote["slot"], share])
                vote = vote.copy()
                vote["gradient"], vote["norms"] = (
                    vote["gradient"] * np.float32(share),
                    vote["norms"] * np.float32(share),
                )
            bounded.append(vote)
        voices.merged([length(vote["norms"]) for vote in bounded])
        return bounded

    def _begin(self, round: Round, answers: list[Answer], record: Merging) -> Gradient:
        """The first version, as it is: of the one learner that was asked, or the newest that learners still hold."""
        p = round["fragment"]
        sound = [
            vote for vote in answers if self._shape_refusal(vote) is None and self._merging.is_finite(vote["gradient"])
        ]
        if not sound or p in self._accounts:
            return self._gradient(round, record, None)
        newest = max(sound, key=lambda vote: (vote["base"] or [self._epoch, 0], -vote["slot"]))
        epoch, count = newest["base"] or (self._epoch, 0)
        self._accounts[p] = FragmentAccount((epoch, count), round["interval"], newest["clock"])
        record["voters"], record["weights"] = [newest["slot"]], [1.0]
        merged = self._merging.Merged(newest["gradient"], np.ones(len(self._fragments[p].units), np.float32))
        return self._gradient(round, record, merged)

    def _merge(self, round: Round, accepted: list[Answer], record: Merging) -> Gradient:
        weights = [weight(vote["end"] - vote["begin"], vote["steps"]) for vote in accepted]
        if not any(weights):
            return self._gradient(round, record, None)
        account = self._accounts[round["fragment"]]
        merged = self._merging.merge(
            [vote["gradient"] for vote in accepted],
            weights,
            [vote["norms"] for vote in accepted],
            self._fragments[round["fragment"]],
            self._method,
        )
        for vote in accepted:
            account.merge(vote["slot"], vote["incarnation"], vote["begin"], vote["end"])
        account.publish((self._epoch, account.newest[1] + 1))
        total = sum(weights)
        voted = [(vote["slot"], share / total) for vote, share in zip(accepted, weights, strict=True) if share > 0]
        record["voters"] = [slot for slot, _ in voted]
        record["weights"] = [share for _, share in voted]
        if round["kind"] == "merge":
            self._merges += 1
            self._votes += len(voted)
        return self._gradient(round, record, merged)

    def _refusal(self, round: Round, vote: Answer) -> str | None:
        """Why an answer is not merged."""
        if (vote["fragment"], vote["kind"]) != (round["fragment"], round["kind"]):
            return "another round"
        account = self._accounts.get(round["fragment"])
        if account is None or vote["base"] is None:
            return "unknown base"
        account.interval = round["interval"]
        refusal = self._shape_refusal(vote) or account.refusal(
            vote["slot"],
            vote["incarnation"],
            (vote["base"][0], vote["base"][1]),
            vote["begin"],
            vote["end"],
            vote["steps"],
            vote["end"] - vote["begin"],
        )
        if refusal is None:
            actual = self._merging.unit_norms(vote["gradient"], self._fragments[vote["fragment"]])
            if not (np.isfinite(actual).all() and np.isfinite(vote["norms"]).all()):
                return "not finite"
            if not are_own(vote["norms"], actual):
                return "norms of other values"
        return refusal

    def _shape_refusal(self, vote: Answer) -> str | None:
        fragment = self._fragments[vote["fragment"]]
        fits = vote["gradient"].shape == (fragment.size,) and vote["norms"].shape == (len(fragment.units),)
        return None if fits else "wrong size"

    def _gradient(self, round: Round, record: Merging, merged: Merged | None) -> Gradient:
        p = round["fragment"]
        account = self._accounts.get(p)
        version = None if account is None else list(account.newest)
        record["version"] = version if merged is not None else None
        record["merges"], record["votes"] = self._merges, self._votes
        record["merged_tokens"] = (
            [] if account is None else [[slot, tokens] for slot, tokens in sorted(account.merged.items())]
        )
        return Gradient(
            fragment=p,
            round=round["round"],
            kind=round["kind"],
            version=version,
            direction=None if merged is None else merged.direction,
            scale=None if merged is None else merged.scale,
            clock=[] if account is None else account.clock(),
            totals=round["totals"],
            merging=record,
        )

    def _record(self, round: Round, decision: Mapping[str, Any]) -> Merging:
        return Merging(
            shard=self._shard,
            epoch=self._epoch,
            round=round["round"],
            fragment=round["fragment"],
            kind=round["kind"],
            version=None,
            voters=[],
            weights=[],
            left_out=list(decision.get("left_out", [])),
            refused=[],
            shortened=[],
            reason=str(decision.get("reason", "")),
            opened_at=int(decision.get("opened_at", 0)),
            quorum_at=int(decision.get("quorum_at", 0)),
            closed_at=int(decision.get("closed_at", 0)),
            published_at=0,
            merged_tokens=[],
            merges=0,
            votes=0,
        )


def _own(answer: Mapping[Any, Answer], record: Merging) -> list[Answer]:
    """The answers that a learner gave for itself; those for another slot are refused."""
    own = []
    for (replica, _), vote in answer.items():
        if vote["slot"] == replica.slot:
            own.append(vote)
        else:
            record["refused"].append([replica.slot, "another's slot"])
    return own
