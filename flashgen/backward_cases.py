"""A short and sharp list of problems for one backward: as for forwards, and what autograd does to dout and dlse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgen.backward_calls import Operands
from flashgen.cases import LAYOUTS, Case
from flashgen.generator import BackwardPlan
from flashgen.testing import reference_attention


@dataclass(frozen=True)
class BackwardCase:
    """A forward's problem, how its out and the gradient of that lie in memory, and whether LSE has a gradient."""

    case: Case
    dout: str = "dense"
    dlse: bool = False

    def __str__(self) -> str:
        return f"{self.case}, dout {self.dout}" + (", dlse" if self.dlse else "")

    def operands(self, plan: BackwardPlan, device: torch.device, seed: int) -> Operands:
        """What a backward reads; out and LSE are the reference's, so that no forward kernel is in question."""
        q, k, v = self.case.inputs(plan, device, seed)
        causal = plan.spec.mask == "causal"
        out, lse = reference_attention(q, k, v, causal=causal, softmax_scale=self.case.softmax_scale)
        generator = torch.Generator(device=device).manual_seed(seed + 1_000_003)
        dout, dlse = (torch.randn(x.shape, generator=generator, device=device) for x in (out, lse))
        change = DOUT_LAYOUTS[self.dout]
        out_layout = LAYOUTS.get(self.dout, LAYOUTS["dense"])
        laid_out = out_layout(*[out.to(q.dtype)] * 3)[0]
        return Operands(change(dout.to(q.dtype)), q, k, v, laid_out, lse.float(), dlse if self.dlse else None)


def backward_cases(plan: BackwardPlan) -> list[BackwardCase]:
    """What one backward is verified on."""
    m, n = plan.block_m, plan.block_n
    return [
        BackwardCase(Case(1, 1, 1, 1, 1)),
        BackwardCase(Case(2, 3, n - 1, 2, 1, layout="surrounded"), "surrounded", dlse=True),
        BackwardCase(Case(1, m - 1, n, 3, 3, layout="transposed"), "transposed"),
        BackwardCase(Case(1, m, n + 1, 3, 1, "wide")),
        BackwardCase(Case(2, m + 1, 3 * n + 5, 4, 2, "outliers", "surrounded"), dlse=True),
        BackwardCase(Case(1, 2 * m + 3, 2 * n, 2, 2, "logits_-100", "surrounded"), "surrounded"),
        BackwardCase(Case(1, 63, 127, 8, 1, "logits_-10000", "surrounded"), "surrounded", dlse=True),
        BackwardCase(Case(1, 129, 4 * n + 7, 6, 2, "logits_-100", "transposed"), "transposed", dlse=True),
        BackwardCase(Case(2, 4 * m + 3, n // 2, 2, 1, layout="surrounded"), "surrounded", dlse=True),  # rows see no key
        BackwardCase(Case(1, 3 * m + 9, 1, 2, 2)),
        BackwardCase(Case(2, 203, 799, 4, 4, "wide", "packed"), "odd_rows"),
        BackwardCase(Case(3, 113, 239, 8, 1, layout="expanded_heads"), "expanded_rows", dlse=True),
        BackwardCase(Case(4, m + 1, n + 1, 4, 2, layout="expanded_batch"), "expanded"),
        BackwardCase(Case(1, 130, 200, 2, 1, layout="misaligned"), "misaligned"),
        BackwardCase(Case(1, 65, 129, 2, 2, layout="strided_last"), "strided_last"),
        BackwardCase(Case(1, 127, 65, 2, 1, layout="odd_rows"), "dense", dlse=True),
        BackwardCase(Case(3, 2 * m + 1, 4 * n + 1, 36, 12, softmax_scale=0.25)),  # more blocks than multiprocessors
        BackwardCase(Case(9, 1, 1025, 8, 2, "outliers")),
        BackwardCase(Case(1, 1025, 1025, 3, 1, "wide", "surrounded"), "surrounded", dlse=True),
        BackwardCase(Case(2, 1023, 1024, 2, 2), "transposed"),
        BackwardCase(Case(5, 2 * n + m + 1, 2 * n + 9, 24, 24), "transposed", dlse=True),  # several a multiprocessor
    ]


def _plain(name: str) -> Callable[[Tensor], Tensor]:
    return lambda x: LAYOUTS[name](x, x, x)[0]


DOUT_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: _plain(name) for name in ("dense", "surrounded", "transposed", "misaligned", "strided_last", "odd_rows")},
    "expanded_rows": lambda x: x[:, :1].expand(x.shape),  # of a mean over the sequence
    "expanded": lambda x: x.flatten()[:1].expand(x.shape),  # of a sum
}
