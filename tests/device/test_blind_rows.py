"""Rows that see no key, under the causal mask with more queries than keys: 0 and -inf, and nobody else is disturbed."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from flashgen.callable_kernel import Kernel
from flashgen.generator import KernelPlan
from tests.device.helpers import MASKS, Complaints, Dims, inputs, kernel_of, plan_for, run

# Head dims, dtype and the keys whose plan is taken; None: that of the longest, at head dim 128 three warpgroups with
# blocks of 80 keys, of which the first skips up to two of a tile, the second one.
KINDS: tuple[tuple[Dims, str, int | None], ...] = (
    (8, "fp16", 600), (64, "bf16", 600), (128, "bf16", 600), (128, "bf16", None), ((192, 128), "fp16", 600),
    (256, "bf16", 600),
)  # fmt: skip
# Blind tiles alone, blind warpgroups in a tile that is not, single blind rows, and a first tile without one.
SEQLENS = ((4224, 63), (1025, 1), (1024, 799), (203, 202), (192, 128), (65, 1), (3, 1), (777, 129), (400, 16))


@cache
def plans() -> tuple[KernelPlan, ...]:
    return tuple(plan_for(dims, dtype, "causal", keys) for dims, dtype, keys in KINDS)


def kernels() -> list[KernelPlan]:
    return [*plans(), *(plan_for(64, "bf16", mask) for mask in MASKS)]


@pytest.mark.parametrize("plan", range(len(KINDS)))
class TestEachKernel:
    """Blind rows through each kind of epilogue."""

    @pytest.fixture
    def kernel(self, plan: int) -> Kernel:
        return kernel_of(plans()[plan])

    def test_they_are_zero_and_minus_infinity(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for sq, sk in SEQLENS:
            q, k, v = inputs(kernel.plan, 3, (sq, sk), (6, 2), kind="wide")
            out, lse = (x.narrow(dim, 0, sq - sk) for x, dim in zip(run(kernel, q, k, v), (1, 2), strict=True))
            zeros, infinities = torch.zeros_like(out), torch.full_like(lse, float("-inf"))
            complaints.same(f"{sq} x {sk}", (out, lse), (zeros, infinities))
        complaints.settle(len(SEQLENS))

    def test_the_rows_that_see_keys_are_what_they_are_without_them(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for sq, sk in SEQLENS:
            q, k, v = inputs(kernel.plan, 2, (sq, sk), (4, 2), kind="outliers")
            out, lse = run(kernel, q, k, v)
            alone = run(kernel, q[:, sq - sk :], k, v)
            complaints.same(f"{sq} x {sk}", (out[:, sq - sk :], lse[:, :, sq - sk :]), alone)
        complaints.settle(len(SEQLENS))

    @pytest.mark.parametrize("poison", [float("nan"), float("inf")])
    def test_nan_or_inf_in_them_changes_nothing(self, kernel: Kernel, poison: float) -> None:
        complaints = Complaints()
        for sq, sk in SEQLENS:
            q, k, v = inputs(kernel.plan, 2, (sq, sk), (4, 2))
            expected = run(kernel, q, k, v)
            q[:, : sq - sk] = poison
            complaints.same(f"{sq} x {sk}", run(kernel, q, k, v), expected)
        complaints.settle(len(SEQLENS))

    @pytest.mark.parametrize("poison", [float("nan"), float("inf")])
    def test_nan_or_inf_in_k_or_v_does_not_reach_them(self, kernel: Kernel, poison: float) -> None:
        complaints = Complaints()
        for sq, sk in SEQLENS:
            for name in ("k", "v"):
                q, k, v = inputs(kernel.plan, 2, (sq, sk), (4, 2))
                (k if name == "k" else v)[:, 0] = poison
                out, lse = run(kernel, q, k, v)
                blind, blind_lse = out[:, : sq - sk], lse[:, :, : sq - sk]
                wrong = int((blind != 0).sum()), int((blind_lse != float("-inf")).sum())
                text = f"of {blind.numel()} numbers of blind rows {wrong[0]} are not 0, {wrong[1]} LSEs are not -inf"
                complaints.that(f"{sq} x {sk}, {poison} in {name}", text if any(wrong) else "")
        complaints.settle(2 * len(SEQLENS))

    def test_nan_in_a_later_key_changes_no_earlier_row(self, kernel: Kernel) -> None:
        """In k, whose scores the mask replaces; in v it would be 0 * NaN, as it is in torch."""
        complaints = Complaints()
        for sq, sk in ((129, 239), (799, 799), (1025, 300)):
            q, k, v = inputs(kernel.plan, 2, (sq, sk), (4, 2))
            out, lse = run(kernel, q, k, v)
            for key in (sk - 1, sk - 64, sk - 100):
                k[:, key] = float("nan")
                got, got_lse = run(kernel, q, k, v)
                before = key + sq - sk  # rows that do not see it
                complaints.same(
                    f"{sq} x {sk}, key {key}", (got[:, :before], got_lse[:, :, :before]),
                    (out[:, :before], lse[:, :, :before]),
                )  # fmt: skip
                seen = bool(got[:, before:].isnan().all())
                complaints.that(f"{sq} x {sk}, key {key}", "" if seen else "a row that sees the key is not NaN")
        complaints.settle(18)


@pytest.mark.parametrize("mask", MASKS)
def test_without_keys_every_row_is_blind(mask: str) -> None:
    complaints = Complaints()
    kernel = kernel_of(plan_for(64, "bf16", mask))
    for seqlens in ((1, 0), (129, 0), (4224, 0)):
        q, k, v = inputs(kernel.plan, 2, seqlens, (4, 2))
        out, lse = run(kernel, q, k, v)
        complaints.same(str(seqlens), (out, lse), (torch.zeros_like(out), torch.full_like(lse, float("-inf"))))
    complaints.settle(3)
