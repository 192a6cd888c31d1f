"""The data of a site: of a machine whose owner has named its own data, on which its learners train.

What may leave the machine of such data is here: figures, a digest, and what the owner permits. No text, no ids and no
names of files may come in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

SHARE: Final = 0.02
"""What the evaluations on its data may cost a learner of its steps."""
EVALUATIONS: Final = "site-evaluations.jsonl"
"""Their lines, in the folder of the run on the site's machine: they are there whether figures are told or not."""


@final
@dataclass(frozen=True, slots=True)
class SiteTerms:
    """What a learner knows of the site that it is on.

    - `digest`: 32 hexadecimal digits of the contents of its files, without their names; `bytes`, and `tokens` that have
      a loss, held-out ones included.
    - `is_told`: losses on its held-out part go to the home of the run; else they stay in a folder of the site.
    - `keeps_own`: the last model of its own, before it adopts that of all, stays with it.
    - `text_bytes`: the bytes of text that those tokens are of, where that is known: by them a loss is in bits a byte.
    """

    digest: str
    bytes: int
    tokens: int
    is_told: bool = True
    keeps_own: bool = False
    text_bytes: int | None = None

    @property
    def words(self) -> list[int]:
        """The digest in words of 32 bits, as it travels."""
        return [int(self.digest[at : at + 8], 16) for at in range(0, 32, 8)]

    def bits_per_byte(self, loss: float) -> float | None:
        """A loss in nats a token as bits a byte of text, as many tokens as its data have in the mean; None where the
        bytes are not known."""
        return loss / math.log(2) * self.tokens / self.text_bytes if self.text_bytes else None


def digest_of_words(words: Sequence[int]) -> str:
    """The digest that was sent in words."""
    return "".join(f"{word & 0xFFFFFFFF:08x}" for word in words)


@final
@dataclass(frozen=True, slots=True)
class SpentData:
    """What a learner has trained of its site's data, once that is all that it may."""

    tokens: int
    of_tokens: int
    epochs_max: float

    def published(self) -> dict[str, float]:
        """As its host shows it."""
        return {"tokens": self.tokens, "of_tokens": self.of_tokens, "epochs_max": self.epochs_max}


@final
class DataAllowance:
    """How much a learner may train of its site's data: all of it `epochs_max` times, in all lives of its slot.

    A learner that is on no site, and one whose program has no `epochs_max`, has no end of it.
    """

    def __init__(self, task: Any, epochs_max: float | None) -> None:
        self._site: SiteTerms | None = getattr(task, "site", None)
        self._epochs_max = epochs_max

    @property
    def is_bounded(self) -> bool:
        """Whether it comes to an end."""
        return self._site is not None and self._epochs_max is not None

    def spent(self, trained: int, more: int) -> SpentData | None:
        """What is spent, where `trained` tokens and `more` would be more than it may train; else None."""
        if self._site is None or self._epochs_max is None or trained + more <= self._epochs_max * self._site.tokens:
            return None
        return SpentData(trained, self._site.tokens, float(self._epochs_max))
