"""The backward's memory, and its grids beyond 65,535."""

from __future__ import annotations

import gc

import pytest
import torch

import flashgen
from flashgen.generator import BackwardPlan, KernelPlan
from flashgen.testing_backward import judge_gradients
from tests.device.backward_helpers import backward_kernel, backward_plan, operands
from tests.device.helpers import MASKS, Complaints, inputs, plan_for


def kernels() -> list[BackwardPlan | KernelPlan]:
    backwards = [backward_plan(16, "bf16", mask, steady) for mask in MASKS for steady in (False, True)]
    long = [backward_plan(128, "bf16", "causal", steady) for steady in (False, True)]
    forwards = [plan_for(16, "bf16", mask, 9) for mask in MASKS]
    return [*backwards, *long, *forwards, *(plan_for(128, "bf16", "causal", rows) for rows in (16_384, 32_768))]


def peak(rows: int, deterministic: bool) -> int:
    """Bytes that forward and backward take above their inputs."""
    leaves = [x.requires_grad_() for x in inputs(plan_for(128, "bf16", "causal", rows), 1, (rows, rows), (8, 8))]
    gc.collect()  # what earlier tests left in cycles would be freed in the middle of this one
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = flashgen.attention(*leaves, causal=True, deterministic=deterministic)
    torch.autograd.grad(out, leaves, torch.ones_like(out))
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("deterministic", [False, True])
def test_memory_is_linear_in_the_length(deterministic: bool) -> None:
    few, many = peak(16_384, deterministic), peak(32_768, deterministic)
    print(f"peak above the inputs: {few} bytes at 16,384 rows, {many} at 32,768")
    assert 1.9 < many / few < 2.1
    one = 16_384 * 8 * 128 * 2  # bytes of q
    assert few < 8 * one  # out, dout, dq, dk, dv, and dq once more in float32


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("batch", "seqlens", "heads"),
    [(70_001, (5, 7), (2, 1)), (1, (5, 7), (131_074, 65_537)), (3, (1, 9), (70_000,) * 2)],
)
def test_more_batches_or_heads_than_65535(
    batch: int, seqlens: tuple[int, int], heads: tuple[int, int], mask: str
) -> None:
    complaints = Complaints()
    for deterministic in (False, True):
        plan = backward_plan(16, "bf16", mask, deterministic)
        q, k, v = inputs(plan_for(16, "bf16", mask, seqlens[1]), batch, seqlens, heads)
        given = operands(q, k, v, mask == "causal", dlse=True)
        got = backward_kernel(plan)(*given)
        verdict = judge_gradients(got, given.dout, q, k, v, dlse=given.dlse, causal=mask == "causal")
        complaints.that(plan.name, "" if verdict.ok else str(verdict))
    complaints.settle(2)
