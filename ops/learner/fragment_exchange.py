"""How the learners of a program exchange fragments: the terms that inner-step and its followers have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, final

from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.exchange.paths import PathParts
from isthmus.ops.exchange.requested import Format


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentExchange:
    """The terms of one program.

    Attributes:
        push: the format of outer gradients.
        alpha: the share of a learner's own fragment that survives an adoption.
        carries: what was trained since the last answer survives whole, and is in the next one.
        answers_last: where its host is to leave, a learner gives last answers.
        tells_links: reports of progress have the goodput of the learner's links.
        frozen: the digests of leaves that are not trained; a learner that makes others refuses to open.
        paths: of a model made of modules, of whose fragments a learner has those of its path. It counts these by
            themselves; messages name them as the whole model does.
    """

    push: Format | Literal["auto"] = "float32"
    alpha: float = 0.0
    carries: bool = False
    answers_last: bool = True
    tells_links: bool = False
    frozen: Digests = ()
    paths: PathParts | None = None


PLAIN: Final = FragmentExchange()
"""That of a program which says nothing."""
