"""Batches of PyTorch by which islands with the same data are found."""

from __future__ import annotations

import pytest
import torch

from isthmus.ops.learner.first_data import batch_digest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex64])
def test_equal_tensors_have_one_digest_and_others_another(dtype: torch.dtype) -> None:
    x = torch.arange(12).reshape(3, 4).to(dtype)
    digest = batch_digest({"x": x, "y": torch.arange(3)})
    assert digest
    assert digest == batch_digest(
        {"x": x.T.contiguous().T.requires_grad_(dtype.is_floating_point), "y": torch.arange(3)}
    )
    assert digest != batch_digest({"x": x + 1, "y": torch.arange(3)})


@pytest.mark.parametrize("batch", [torch.arange(64), torch.tensor(3), torch.randperm(5), torch.eye(3).to_sparse()])
def test_places_and_what_cannot_be_read_have_none(batch: torch.Tensor) -> None:
    assert not batch_digest(batch)
