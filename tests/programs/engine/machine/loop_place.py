"""A script whose loop is the learner of an island, for machines on loopback; and what it has printed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SCRIPT: Final = """
import hashlib, os, sys, time
import jax.numpy as jnp, numpy as np
import isthmus

state = {"w": jnp.zeros(64), "steps": jnp.zeros(())}
with isthmus.island(state, merge={"w": "rda", "steps": "local"}) as island:
    state = island.state
    print("BEGAN", island.slot, int(state["steps"]), *sys.argv[1:], flush=True)
    rng = np.random.default_rng(island.seed)
    for _ in island(iter(int, 1)):
        if island.slot == 0 and os.path.exists("hold"):
            time.sleep(0.5)
        w = state["w"] + 0.01 * (rng.normal(size=64).astype(np.float32) - state["w"])
        time.sleep(0.02)
        state = island.step({"w": w, "steps": state["steps"] + 1}, loss=float(jnp.mean(w**2)), tokens=40)
state = island.state
print("BEHIND", island.slot, hashlib.sha256(np.asarray(state["w"]).tobytes()).hexdigest(), flush=True)
"""
"""It makes some 50 steps a second at most, of 40 tokens each, which take few cores; that of slot 0 two a second while
there is a file `hold`."""


def said(folder: Path, slot: int, word: str) -> list[list[str]]:
    """What the script of a slot has printed behind a word, in all its lives, as the run's folder has it."""
    path = folder / "logs" / f"learner-{slot}.log"
    text = path.read_text() if path.exists() else ""
    return [line.split()[1:] for line in text.splitlines() if line.startswith(word)]
