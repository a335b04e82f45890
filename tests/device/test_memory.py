"""What training 65,536 tokens takes: room for what goes in and out, and a workspace that is linear in the length."""

from __future__ import annotations

import pytest
import torch

import flashgen
from flashgen.generator import BackwardPlan, KernelPlan
from tests.device.backward_helpers import backward_plan
from tests.device.helpers import inputs, plan_for

ROWS, HEADS, DIM = 65_536, 16, 128
SLACK = 8 << 20  # bytes: torch's allocator may round each large tensor up by one megabyte


def kernels() -> list[BackwardPlan | KernelPlan]:
    backwards = [backward_plan(DIM, "bf16", "causal", steady) for steady in (False, True)]
    return [*backwards, plan_for(DIM, "bf16", "causal", ROWS)]


@pytest.mark.parametrize("deterministic", [False, True], ids=["plain", "deterministic"])
def test_forward_and_backward_of_64k_tokens_borrow_no_more_than_documented(deterministic: bool) -> None:
    plan = backward_plan(DIM, "bf16", "causal", deterministic)
    padded = plan.m_blocks(ROWS) * plan.block_m
    dq_accum, row_numbers = HEADS * padded * DIM * 4, 2 * HEADS * padded * 4
    counters = HEADS * plan.m_blocks(ROWS) * 8
    leaves = [x.requires_grad_() for x in inputs(plan_for(DIM, "bf16", "causal", ROWS), 1, (ROWS,) * 2, (HEADS,) * 2)]
    dout = torch.randn_like(leaves[0])
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = flashgen.attention(*leaves, causal=True, deterministic=deterministic)
    gradients = torch.autograd.grad(out, leaves, dout)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    lse = HEADS * ROWS * 4
    kept = lse + sum(x.numel() * x.element_size() for x in (out, *gradients))
    borrowed = peak - kept
    print(
        f"peak {peak / 2**20:.1f} MiB, {kept / 2**20:.1f} of it out, LSE and gradients; {borrowed / 2**20:.1f} borrowed"
    )
    assert borrowed <= dq_accum + row_numbers + counters + SLACK
    assert borrowed >= dq_accum, "dq is added up in float32: this did not see it"
    assert plan.workspace_bytes(1, HEADS, ROWS) <= dq_accum + row_numbers + counters + 1024
    assert all(bool(x.isfinite().all()) for x in gradients)
