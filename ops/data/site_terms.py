"""The data of a site: of a machine whose owner has named its own data, on which its learners train.

What may leave the machine of such data is here: figures, a digest, and what the owner permits. No text, no ids and no
names of files may come in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class SiteTerms:
    """What a learner knows of the site that it is on.

    - `digest`: 32 hexadecimal digits of the contents of its files, without their names; `bytes`, and `tokens` that have
      a loss, held-out ones included.
    - `is_told`: losses on its held-out part go to the home of the run; else they stay in a folder of the site.
    - `keeps_own`: the last model of its own, before it adopts that of all, stays with it.
    """

    digest: str
    bytes: int
    tokens: int
    is_told: bool = True
    keeps_own: bool = False
