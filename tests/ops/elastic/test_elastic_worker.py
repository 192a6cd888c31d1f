"""Which exceptions of a worker mean that its form is broken, and which are the task's own."""

from __future__ import annotations

import jax
import pytest

from isthmus.ops.elastic.worker import is_of_execution

GLOO = "Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Read error: Connection reset by peer"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"UNKNOWN: {GLOO}"),  # As a function raises it that runs in the thread of its caller (0.10 to 0.12).
        jax.errors.JaxRuntimeError(f"UNKNOWN: {GLOO}"),  # As reading the result raises it.
        jax.errors.JaxRuntimeError("anything"),
    ],
)
def test_a_peer_that_is_gone_breaks_the_form(error: Exception) -> None:
    assert is_of_execution(error)


@pytest.mark.parametrize("error", [ValueError("mine: no"), ValueError("INVALID_ARGUMENT: shape"), KeyError("UNKNOWN")])
def test_what_a_task_raises_does_not(error: Exception) -> None:
    assert not is_of_execution(error)
