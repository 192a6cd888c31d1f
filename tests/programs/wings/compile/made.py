"""Figures as a worker might tell them."""

from __future__ import annotations

from isthmus.programs.wings.compile.figures import (
    Collectives,
    Compiled,
    Counted,
    IslandFigures,
    ProgramMemory,
    RefusedProgram,
)

MEGA = 10**6
LIMIT = 32_000 * MEGA
FIGURES = Compiled(
    ProgramMemory(
        arguments=310 * MEGA, outputs=301 * MEGA, aliased=300 * MEGA, temporaries=90 * MEGA, code=5 * MEGA, peak=0
    ),
    accessed_bytes=2e9,
    collectives=Collectives(12, 5, 4, {"all-gather": 7, "all-reduce": 5}),
    compile_seconds=40.0,
)
SMALL = Compiled(ProgramMemory(100 * MEGA, 100 * MEGA, 0, 0, MEGA, 0), 1e6, Collectives(0, 0, 0, {}), 0.5)
STEP = Counted(
    name="step",
    is_step=True,
    products=4 * 10**12,
    unbounded=0,
    state_bytes=300 * MEGA,
    given_bytes=8 * MEGA,
    made_bytes=1200 * MEGA,
    compiled=FIGURES,
    refused=None,
    is_kept=False,
)
EXTRACT = Counted(
    name="extract/0",
    is_step=False,
    products=0,
    unbounded=0,
    state_bytes=100 * MEGA,
    given_bytes=0,
    made_bytes=400 * MEGA,
    compiled=SMALL,
    refused=None,
    is_kept=True,
)
REFUSED = RefusedProgram(used_bytes=40_000 * MEGA, compile_seconds=3.0)


def answer(*functions: Counted) -> IslandFigures:
    return IslandFigures(1024, "TPU v6 lite", 4, 1, LIMIT, functions, {"jax": "0.10.2", "libtpu": "0.0.42.1"})
