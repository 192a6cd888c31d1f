"""What the home of a run costs: bytes that come to recorder and evaluator, and the memory of these and of its daemon.

The recorder of a program without turns takes each version of a fragment at most once, at the pace of snapshots, and the
evaluator those that it evaluates; those of one in lock-step are sent all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from isthmus.ops.exchange.formats import FORMATS
from isthmus.ops.exchange.token_accounts import FATES
from isthmus.ops.syncer.state_sender import PART_BYTES
from isthmus.programs.engine.request.run_settings import SNAPSHOT_SECONDS_DEFAULT
from isthmus.programs.evaluations import TIMES

WHOLE: Final = FORMATS["float32"].bits
PROCESS_BYTES: Final = {"daemon": 208e6, "recorder": 154e6}
"""Resident without a model, libraries included (`tests/bench/bench_memory.py --home`)."""
PARTS_HELD: Final = 4
"""Of a state that comes: in the channel, as a message, and as it is hashed and written."""
STANDING_BYTES: Final = 3e3
"""The recorder's memory for each learner and fragment: the accounts of its last report, and the last merges; 71 kB a
learner with 24 fragments, by `tracemalloc`."""
REPORT_BYTES: Final = 400.0
REPORTED_BYTES: Final = 3.0
"""Of a report: for itself, and for each number that it has of a fragment, MessagePack."""


def state_bits(update: str) -> float:
    """Bits of a value in what a shard goes on from: published and, where these are coded, exact values, and momentum. A
    run of so few sweeps that it has no momentum has less."""
    return WHOLE * (2 + (update != "float32"))


def evaluated_share(sweeps: float) -> float:
    """The share of versions that an evaluator takes in a run that passes so often over all fragments, at most: it
    evaluates TIMES times."""
    return min(1.0, TIMES / max(sweeps, 1.0))


def told_bits(update: str) -> float:
    """Bits of a value that the evaluator of a program in lock-step is sent with each version: whole ones twice, to
    evaluate and to hold them."""
    return FORMATS[update].bits * (2 if update == "float32" else 1)


def taken_share(sweep_seconds: float, seconds: float = SNAPSHOT_SECONDS_DEFAULT) -> float:
    """The share of versions that a recorder takes, where a fragment has one each `sweep_seconds`."""
    return min(1.0, sweep_seconds / seconds)


def home_bits(update: str, sweep_seconds: float, sweeps: float, *, in_turns: bool = False) -> float:
    """Bits of a value that a shard sends to recorder and evaluator with each version, in the mean."""
    if in_turns:
        return told_bits(update) + state_bits(update)
    return evaluated_share(sweeps) * WHOLE + taken_share(sweep_seconds) * state_bits(update)


class HomeLoad(NamedTuple):
    """Of decoupled-diloco: the mean bits a second that come to recorder, evaluator and recorder's reports, and bytes of
    memory. The evaluator has the values that it took, and those that its device evaluates."""

    recorder_bits: float
    evaluator_bits: float
    report_bits: float
    recorder_bytes: float
    evaluator_bytes: float
    daemon_bytes: float


def home_of(
    parameters: float, learners: int, fragments: int, update: str, sweep_seconds: float, sweeps: float
) -> HomeLoad:
    """The load of the home of a run whose fragments are merged each `sweep_seconds`, in `sweeps`, as its learners
    report."""
    a_second = parameters / sweep_seconds
    report = REPORT_BYTES + REPORTED_BYTES * fragments * (len(FATES) + 3)  # An account, a version and an epoch of each.
    return HomeLoad(
        a_second * taken_share(sweep_seconds) * state_bits(update),
        a_second * evaluated_share(sweeps) * WHOLE,
        8 * learners * report * fragments / sweep_seconds,
        PROCESS_BYTES["recorder"] + PARTS_HELD * PART_BYTES + learners * fragments * STANDING_BYTES,
        2 * WHOLE / 8 * parameters,
        PROCESS_BYTES["daemon"],
    )
