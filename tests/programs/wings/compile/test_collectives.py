"""Collectives of the text of a compiled program: its form is that of modules compiled for v5p and v6e, cut short."""

from __future__ import annotations

import pytest

from isthmus.programs.wings.compile.figures import read_collectives
from isthmus.runtime.errors import InvariantError

MODULE = """HloModule jit_step, is_scheduled=true, entry_computation_layout={...}

%fused_product (param_0: bf16[8,4]) -> bf16[8,8] {
  %param_0 = bf16[8,4]{1,0} parameter(0)
  ROOT %convolution.1 = bf16[8,8]{1,0} convolution(%param_0, %param_0), dim_labels=bf_io->bf
}

%async_collective_fusion.1 (param_0.1: bf16[2,4]) -> (bf16[2,4], u32[]) {
  %param_0.1 = bf16[2,4]{1,0} parameter(0)
  ROOT %all-gather.9 = bf16[8,4]{1,0} all-gather(%param_0.1), channel_id=9, dimensions={0}
}

%async_collective_fusion.2 (param_0.2: bf16[2,4]) -> (bf16[2,4], u32[]) {
  %param_0.2 = bf16[2,4]{1,0} parameter(0)
  %all-gather.10 = bf16[8,4]{1,0} all-gather(%param_0.2), channel_id=9, dimensions={0}
  ROOT %convolution.2 = bf16[8,8]{1,0} convolution(%all-gather.10, %param_0.2), dim_labels=bf_io->bf
}

%all-reduce-scatter (input: f32[8]) -> f32[2] {
  %input = f32[8]{0} parameter(0)
  %all-reduce.1 = f32[8]{0} all-reduce(%input), channel_id=3, to_apply=%add
  ROOT %dynamic-slice = f32[2]{0} dynamic-slice(%all-reduce.1, %input), dynamic_slice_sizes={2}
}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main (p: bf16[2,4], q: f32[8]) -> (bf16[8,8], f32[2]) {
  %p = bf16[2,4]{1,0:T(8,128)(2,1)} parameter(0)
  %q = f32[8]{0} parameter(1)
  %all-gather.1 = bf16[8,4]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=1, dimensions={0}
  %collective-permute-start = (f32[8]{0}, f32[8]{0}) collective-permute-start(%q), channel_id=2
  %product = bf16[8,8]{1,0} fusion(%all-gather.1), kind=kOutput, calls=%fused_product
  %collective-permute-done = f32[8]{0} collective-permute-done(%collective-permute-start)
  %collective-permute-start.1 = (f32[8]{0}, f32[8]{0}) collective-permute-start(%q), channel_id=4
  %get-tuple-element.1 = f32[8]{0} get-tuple-element(%collective-permute-start.1), index=0
  %collective-permute-done.1 = f32[8]{0} collective-permute-done(%collective-permute-start.1)
  %async-collective-start = (bf16[2,4]{1,0}, u32[]{:S(2)}, /*index=5*/u32[]{:S(2)}) fusion(%p), kind=kCustom, \
calls=%async_collective_fusion.1
  %get-tuple-element.2 = bf16[2,4]{1,0} get-tuple-element(%async-collective-start), index=0
  %carried = bf16[8,8]{1,0} fusion(%get-tuple-element.2), kind=kOutput, calls=%async_collective_fusion.2
  %async-collective-done = bf16[8,4]{1,0} fusion(%get-tuple-element.2), kind=kCustom, calls=%async_collective_fusion.1
  %scattered = f32[2]{0} fusion(%q), kind=kCustom, calls=%all-reduce-scatter
  ROOT %tuple = (bf16[8,8]{1,0}, f32[2]{0}) tuple(%product, %scattered)
}
"""


def test_pairs_with_computation_between_overlap_and_what_waits_is_counted() -> None:
    found = read_collectives(MODULE)
    assert found.by_kind == {"all-gather": 2, "all-reduce": 1, "collective-permute": 2}
    assert (found.count, found.asynchronous, found.overlapped) == (5, 3, 2)


def test_without_computation_between_nothing_overlaps() -> None:
    lines = MODULE.splitlines()
    computing = [line for line in lines if line.startswith(("  %product", "  %carried"))]
    at_the_end = [line for line in lines if line not in computing]
    at_the_end[-2:-2] = computing
    found = read_collectives("\n".join(at_the_end))
    assert (found.count, found.asynchronous, found.overlapped) == (5, 3, 0)


def test_sends_to_another_slice_are_pairs() -> None:
    text = """HloModule jit_step, is_scheduled=true
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %send = (f32[8]{0}, u32[], token[]) send(%p, %p), channel_id=1, is_host_transfer=true
  %recv = (f32[8]{0}, u32[], token[]) recv(%p), channel_id=2, is_host_transfer=true
  %work = f32[8]{0} custom-call(%p), custom_call_target="kernel"
  %send-done = token[] send-done(%send), channel_id=1
  ROOT %recv-done = (f32[8]{0}, token[]) recv-done(%recv), channel_id=2
}
"""
    found = read_collectives(text)
    assert (found.count, found.asynchronous, found.overlapped) == (2, 2, 2)


def test_a_text_that_is_no_schedule_is_refused() -> None:
    with pytest.raises(InvariantError, match="is_scheduled"):
        read_collectives("HloModule jit_step\n")
