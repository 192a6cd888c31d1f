"""How much a run evaluates: how often, and on how many windows of held-out text.

Both follow from the request, never from a clock, so that two runs of one request evaluate the same. All evaluations
of a run together cost at most `run.evaluate_share` of the operations of its training. Where that is too little for
`TIMES` evaluations of `WINDOWS_MIN` windows, there are fewer evaluations, but always the first and the last; where it
is more, there are more windows, `WINDOWS` at most. A model below `SMALL` parameters is evaluated as often as any, on
`WINDOWS` windows: there an evaluation takes a moment, whatever it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from isthmus.ops.data.held_out import FORWARD, WINDOWS
from isthmus.programs.settings import Setting
from isthmus.runtime.errors import Fault

SHARE: Final = 0.1
TIMES: Final = 20
TIMES_MIN: Final = 2
WINDOWS_MIN: Final = 8
SMALL: Final = 1_000_000
When: TypeAlias = Literal["all", "ends", "none"]
FIXED: Final[Mapping[When, int]] = {"ends": 2, "none": 0}
SetsSetting: TypeAlias = Annotated[
    Mapping[str, str] | None,
    Setting(
        "Named held-out sets, evaluated during the run, too: a file or folder each, read as the data are, such as "
        '{code = "PATH", law = "PATH"}. Default: none.',
        resumes=True,
    ),
]
WindowsSetting: TypeAlias = Annotated[
    int | None,
    Setting(
        "The most windows of held-out text on which an evaluation is made, in whole batches; they do not overlap. "
        f"Default: by run.evaluate_share, from {WINDOWS_MIN} to {WINDOWS}; of a model below a million "
        f"parameters {WINDOWS}, which may overlap.",
        ge=1,
        expected="an integer of at least 1",
    ),
]


class RunSize(NamedTuple):
    """How large a run is, from which the defaults of a shipped task follow: its budget of `tokens`, its `learners`, and
    the share and times of evaluations."""

    tokens: int
    learners: int
    share: float = SHARE
    when: When = "all"


def forwards(tokens: int, share: float) -> float:
    """How many tokens all evaluations of a run over `tokens` tokens may predict."""
    return share * FORWARD * tokens


def windows_default(parameters: int, context: int, run: RunSize, texts: int = 1) -> int | None:
    """The windows of an evaluation, of `context` tokens each, of each of so many held-out texts; None for a small
    model, which has what all have."""
    if parameters < SMALL:
        return None
    windows = int(forwards(run.tokens, run.share) / (FIXED.get(run.when, TIMES) or TIMES) / context / texts)
    return max(WINDOWS_MIN, min(windows, WINDOWS) if run.share == SHARE else windows)


def times_default(run: RunSize, evaluated: int | None) -> int:
    """How many evaluations a run makes at most, each of which predicts `evaluated` tokens; None of one that costs
    nothing to speak of."""
    if run.when in FIXED or evaluated is None:
        return FIXED.get(run.when, TIMES)
    return max(TIMES_MIN, min(TIMES, int(forwards(run.tokens, run.share) / evaluated)))


def too_much(run: RunSize, evaluated: int | None, times: int) -> Fault | None:
    """The warning that so many evaluations exceed the run's share; None if they do not."""
    most = forwards(run.tokens, run.share)
    if evaluated is None or times * evaluated <= most:
        return None
    found = times * evaluated / (FORWARD * run.tokens)
    return Fault(
        f"Evaluating {times} times in a run on {run.tokens:,} tokens",
        f"at most {run.share:.3g} of the operations of its training, by run.evaluate_share",
        f"{found:.3g}: {evaluated:,} held-out tokens each time",
        'Set run.evaluate = "none" and use `isthmus evaluate RUN` later, evaluate on less, or train on more tokens.',
    )
