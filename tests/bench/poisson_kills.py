"""The plan of `isthmus chaos` that benches of kills share: a run, and SIGKILL at the moments of a Poisson process."""

from __future__ import annotations

import json
from collections.abc import Sequence


def poisson_kills(
    task: str, hosts: Sequence[str], *, learners: int, tokens: int, mean_seconds: float, seed: int, more: str = ""
) -> str:
    """TOML: `learners` train the `task`, any of the `hosts` is killed every `mean_seconds`; `more` are other tables."""
    return f"""
[run]
learners = {learners}
slots_max = {learners}
tokens = {tokens}
task = {json.dumps(task)}
{more}
[random]
seed = {seed}
mean_seconds = {mean_seconds}
kinds = ["kill"]
hosts = {json.dumps(list(hosts))}
"""
