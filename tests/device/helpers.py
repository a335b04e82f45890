"""Kernels, inputs, runs into NaN-filled results and comparisons bit by bit, with words for what differs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

import flashgen
from flashgen.callable_kernel import Kernel
from flashgen.generator import KernelPlan, KernelSpec, PlanRequest
from flashgen.generator import plan as make_plan
from flashgen.generator.shipped import shipped_spec
from flashgen.testing import make_inputs

Dims = int | tuple[int, int]  # head dim, or those of q and k and of v
Result = tuple[Tensor, Tensor]  # out and LSE

DEVICE = torch.device("cuda")
NAN = float("nan")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MASKS = ("full", "causal")
SEQLENS = (1, 3, 63, 64, 65, 113, 127, 128, 129, 203, 239, 799, 1023, 1024, 1025, 4224)  # they straddle every tile
BITS = {2: torch.int16, 4: torch.int32}
SLEEP = 400_000_000  # GPU cycles, about 0.2 s: longer than the host takes for any one step of a test


def both(dims: Dims) -> tuple[int, int]:
    return dims if isinstance(dims, tuple) else (dims, dims)


def label(dims: Dims) -> str:
    return f"d{dims}" if isinstance(dims, int) else f"d{dims[0]}x{dims[1]}"


@cache
def plan_for(dims: Dims, dtype: str = "bf16", mask: str = "full", keys: int | None = None) -> KernelPlan:
    """The plan that flashgen.attention takes for so many keys; None: for many."""
    qk, v = both(dims)
    spec = KernelSpec.forward(head_dim=qk, head_dim_v=v, dtype=dtype, mask=mask)
    return make_plan(spec if keys is None else shipped_spec(spec, keys))


def same_plan_as(plan: KernelPlan, mask: str) -> KernelPlan:
    """A plan of another mask with the very tile and arithmetic of this one."""
    spec = plan.spec
    other = KernelSpec.forward(head_dim=spec.head_dim_qk, head_dim_v=spec.head_dim_v, dtype=spec.dtype, mask=mask)
    return make_plan(other, plan.request)


def smaller_tile(plan: KernelPlan) -> KernelPlan:
    """A plan of the same problem that nothing but an explicit request gives."""
    return make_plan(plan.spec, PlanRequest(block_m=64, block_n=48))


def kernel_of(plan: KernelPlan) -> Kernel:
    return flashgen.get_kernel(plan)


def inputs(
    plan: KernelPlan, batch: int, seqlens: tuple[int, int], heads: tuple[int, int], seed: int = 0, kind: str = "normal"
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v for a kernel; ``seqlens`` of queries and keys, ``heads`` of queries and keys."""
    spec = plan.spec
    k = (batch, seqlens[1], heads[1], spec.head_dim_qk)
    return make_inputs(
        kind, (batch, seqlens[0], heads[0], spec.head_dim_qk), k, (*k[:3], spec.head_dim_v),
        dtype=DTYPES[spec.dtype], device=DEVICE, seed=seed,
    )  # fmt: skip


def run(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None) -> Result:
    """One kernel's result in memory that held NaN before."""
    out = q.new_full((*q.shape[:3], v.shape[3]), NAN)
    lse = q.new_full((q.shape[0], q.shape[2], q.shape[1]), NAN, dtype=torch.float32)
    kernel.into(q, k, v, out, lse, softmax_scale=softmax_scale)
    return out, lse


def bits(x: Tensor) -> Tensor:
    return x.view(BITS[x.element_size()])


def difference(got: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """How two results differ, bit by bit; an empty string when they do not."""
    words = []
    for name, a, b in zip(("out", "LSE"), got, expected, strict=False):
        if a.shape != b.shape or a.dtype != b.dtype:
            words.append(f"{name} is {a.dtype} {tuple(a.shape)}, not {b.dtype} {tuple(b.shape)}")
            continue
        if a.numel() == 0 or torch.equal(bits(a), bits(b)):
            continue
        where = (bits(a) != bits(b)).nonzero()
        first = tuple(where[0].tolist())
        text = f"{name} differs in {len(where)} of {a.numel()} numbers, first at {first}: "
        words.append(text + f"{a[first].item()!r}, not {b[first].item()!r}")
    return "; ".join(words)


class Complaints:
    """Collects what is wrong over many cases, so that one failure tells of all of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.checked = 0

    def same(self, what: str, got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
        self.that(what, difference(got, expected))

    def that(self, what: str, wrong: str) -> None:
        """Note a case; ``wrong`` is empty when it is right."""
        self.checked += 1
        if wrong:
            self.lines.append(f"{what}: {wrong}")

    def settle(self, at_least: int = 1) -> None:
        """Fail with every complaint, or when fewer cases than expected were checked at all."""
        shown = "\n".join(self.lines[:20])
        assert not self.lines, f"{len(self.lines)} of {self.checked} cases are wrong:\n{shown}"
        assert self.checked >= at_least, f"only {self.checked} cases were checked"
