"""One case of a backward: gradients into rooms of NaN, run again for equal bits or for another chance to fail."""

from __future__ import annotations

import torch
from torch import Tensor

from flashgen.backward_cases import BackwardCase
from flashgen.backward_kernel import BackwardKernel
from flashgen.guarded import guarded_rows, rows_kept, same_bits
from flashgen.testing_backward import Gradients, GradientVerdict, judge_gradients

RUNS = 20  # of a deterministic kernel on a GPU: all must give the same bits
FEW_RUNS = 2


def run_backward_case(
    kernel: BackwardKernel, case: BackwardCase, device: torch.device, seed: int
) -> tuple[GradientVerdict, str]:
    """The verdict on one case, and what else was wrong with it ("" = nothing)."""
    given, scale = case.operands(kernel.plan, device, seed), case.case.softmax_scale
    deterministic = kernel.spec.deterministic

    def run() -> tuple[tuple[Tensor, ...], Gradients]:
        (a, dq), (b, dk), (c, dv) = (guarded_rows(x, x.shape) for x in (given.q, given.k, given.v))
        kernel.into(*given, dq, dk, dv, softmax_scale=scale)
        return (a, b, c), (dq, dk, dv)

    def judged(gradients: Gradients) -> GradientVerdict:
        return judge_gradients(
            gradients, given.dout, given.q, given.k, given.v, dlse=given.dlse, causal=kernel.spec.mask == "causal",
            softmax_scale=scale,
        )  # fmt: skip

    rooms, gradients = run()
    verdict = judged(gradients)
    if not all(map(rows_kept, rooms)):
        return verdict, "memory outside the gradients was written to"
    for _ in range(1, RUNS if deterministic and device.type == "cuda" else FEW_RUNS):
        others, again = run()
        if deterministic and not all(map(same_bits, rooms, others)):
            return verdict, "two runs on the same input differ"
        if not deterministic and verdict.ok:
            verdict = judged(again)
    return verdict, ""
