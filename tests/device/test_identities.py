"""Problems that are the same problem give the same bits, and numbers that a row does not read change none of its."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from flashgen.callable_kernel import Kernel
from flashgen.generator import KernelPlan
from tests.device.helpers import Complaints, Dims, Result, inputs, kernel_of, plan_for, run, same_plan_as

# A head dim for each way through the kernel: three and two warpgroups, d_qk no multiple of 16, early start, d_v of its
# own, output from registers.
KINDS: tuple[tuple[Dims, str], ...] = ((64, "bf16"), (72, "fp16"), (128, "bf16"), ((192, 128), "bf16"), (256, "fp16"))
SEQLENS = ((129, 239), (203, 203), (799, 113), (1025, 1024), (300, 4224))


@cache
def plans() -> tuple[KernelPlan, ...]:
    return tuple(plan_for(dims, dtype, mask, keys) for dims, dtype in KINDS for mask in ("full", "causal")
                 for keys in ((600, 4224) if dims == 128 else (600,)))  # fmt: skip


def kernels() -> list[KernelPlan]:
    return [*plans(), *(same_plan_as(plan, "full" if plan.spec.mask == "causal" else "causal") for plan in plans())]


def causal(kernel: Kernel) -> bool:
    return kernel.spec.mask == "causal"


def scalable(x: Tensor) -> Tensor:
    """Without the numbers, a few in ten thousand of fp16's, that a quarter of would be subnormal: those lose bits."""
    return x.masked_fill(x.abs() < 4 * torch.finfo(x.dtype).smallest_normal, 0.0)


def times(factor: int, out: Tensor, got: Tensor) -> Tensor:
    """``out * factor``, with what cannot be told from it taken from ``got``.

    A subnormal number was rounded in steps that do not shrink with it, so its multiple is within so many steps and no
    nearer. And zero has a sign: that of blind rows is always plus.
    """
    numbers = torch.finfo(out.dtype)
    exact = out.double() * factor
    near = (got.double() - exact).abs() <= abs(factor) * numbers.smallest_normal * numbers.eps
    # The smallest normal number too: what lies just below it is rounded up to it in subnormal steps.
    return torch.where((out.abs() <= numbers.smallest_normal) & near, got, exact.to(out.dtype))


def at(result: Result, batch: slice = slice(None), heads: slice | Tensor = slice(None)) -> Result:
    return result[0][batch, :, heads], result[1][batch, heads]


@pytest.mark.parametrize("plan", range(12))
class TestEachKernel:
    """One after another, so that a failure names the kernel."""

    @pytest.fixture
    def kernel(self, plan: int) -> Kernel:
        return kernel_of(plans()[plan])

    def test_every_run_gives_the_same_bits_beside_other_work(self, kernel: Kernel) -> None:
        complaints, other = Complaints(), torch.cuda.Stream()
        noise = torch.randn(2048, 2048, device="cuda")
        for seqlens in ((1025, 1024), (2048, 4224), (129, 239)):
            q, k, v = inputs(kernel.plan, 3, seqlens, (8, 2), kind="wide")
            expected = run(kernel, q, k, v)
            other.wait_stream(torch.cuda.current_stream())
            for attempt in range(20):
                with torch.cuda.stream(other):
                    noise @ noise
                complaints.same(f"{seqlens}, run {attempt}", run(kernel, q, k, v), expected)
            other.synchronize()
        complaints.settle(60)

    def test_a_slice_of_the_batch_or_a_group_of_heads_is_what_it_is_alone(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for seqlens in SEQLENS:
            q, k, v = inputs(kernel.plan, 5, seqlens, (6, 2), kind="outliers")
            whole = run(kernel, q, k, v)
            for b in range(5):
                one = slice(b, b + 1)
                complaints.same(f"{seqlens}, batch {b}", run(kernel, q[one], k[one], v[one]), at(whole, batch=one))
            for h in range(2):
                group, one = slice(3 * h, 3 * h + 3), slice(h, h + 1)
                got = run(kernel, q[:, :, group], k[:, :, one], v[:, :, one])
                complaints.same(f"{seqlens}, kv head {h}", got, at(whole, heads=group))
        complaints.settle(35)

    def test_grouped_heads_are_expanded_heads_and_permuted_heads_permute_the_result(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for seqlens, group in ((s, g) for s in SEQLENS for g in (2, 3, 8)):
            q, k, v = inputs(kernel.plan, 2, seqlens, (2 * group, 2))
            whole = run(kernel, q, k, v)
            wide = run(kernel, q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
            complaints.same(f"{seqlens}, group of {group}", wide, whole)
            order = torch.randperm(2 * group, generator=torch.Generator().manual_seed(group)).tolist()
            kv = [h // group for h in order]
            complaints.same(f"{seqlens}, heads {order}", run(kernel, q[:, :, order], k[:, :, kv], v[:, :, kv]),
                            at(whole, heads=torch.tensor(order)))  # fmt: skip
        complaints.settle(30)

    def test_a_query_alone_is_what_it_is_among_others(self, kernel: Kernel) -> None:
        """Alone with the keys up to its own where the mask is causal: none beyond them may count."""
        complaints = Complaints()
        for sq, sk in SEQLENS:
            q, k, v = inputs(kernel.plan, 2, (sq, sk), (4, 2), kind="logits_-100")
            out, lse = run(kernel, q, k, v)
            for row in {0, 1, 63, 64, 100, 127, 128, sq // 2, sq - 2, sq - 1}:
                keys = row + 1 + sk - sq if causal(kernel) else sk
                if keys < 1 or row >= sq:
                    continue
                got = run(kernel, q[:, row : row + 1], k[:, :keys], v[:, :keys])
                expected = out[:, row : row + 1], lse[:, :, row : row + 1]
                complaints.same(f"row {row} of {sq} x {sk}", got, expected)
        complaints.settle(35)

    def test_powers_of_two_pass_through(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for seqlens in SEQLENS:
            q, k, v = inputs(kernel.plan, 2, seqlens, (4, 2))
            k = scalable(k)
            out, lse = run(kernel, q, k, v, 0.125)
            complaints.same(f"{seqlens}, q times 2", run(kernel, q * 2, k, v, 0.0625), (out, lse))
            complaints.same(f"{seqlens}, k over 4", run(kernel, q, k / 4, v, 0.5), (out, lse))
            got = run(kernel, q, k, v * -8, 0.125)
            complaints.same(f"{seqlens}, v times -8", got, (times(-8, out, got[0]), lse))
        complaints.settle(15)

    def test_nan_and_inf_elsewhere_change_no_bit(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for seqlens, poison in ((s, p) for s in SEQLENS for p in (float("nan"), float("inf"), -float("inf"))):
            q, k, v = inputs(kernel.plan, 3, seqlens, (6, 2))
            clean = run(kernel, q, k, v)
            for name, x, where, mine in (
                ("batch 1 of q", q, (1,), (slice(None, None, 2), slice(None))),
                ("batch 1 of k", k, (1,), (slice(None, None, 2), slice(None))),
                ("batch 1 of v", v, (1,), (slice(None, None, 2), slice(None))),
                ("kv head 0 of k", k, (slice(None), slice(None), 0), (slice(None), slice(3, 6))),
                ("kv head 0 of v", v, (slice(None), slice(None), 0), (slice(None), slice(3, 6))),
                ("head 2 of q", q, (slice(None), slice(None), 2), (slice(None), slice(3, 6))),
            ):
                kept = x[where].clone()
                x[where] = poison
                complaints.same(f"{seqlens}, {poison} in {name}", at(run(kernel, q, k, v), *mine), at(clean, *mine))
                x[where] = kept
            complaints.same(f"{seqlens}, clean again", run(kernel, q, k, v), clean)
        complaints.settle(105)

    def test_nan_in_a_row_of_q_is_in_its_result_and_in_no_other(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for sq, sk in SEQLENS:
            q, k, v = inputs(kernel.plan, 1, (sq, sk), (4, 2))
            out, lse = run(kernel, q, k, v)
            row = sq - 5
            q[:, row, 1, 0] = float("nan")
            got, got_lse = run(kernel, q, k, v)
            shown = got[:, row, 1].isnan().all() and got_lse[:, 1, row].isnan().all()
            complaints.that(
                f"row {row} of {sq} x {sk}", "" if shown else f"NaN was lost: {got[0, row, 1, :4].tolist()}"
            )
            got[:, row, 1], got_lse[:, 1, row] = out[:, row, 1], lse[:, 1, row]
            complaints.same(f"other rows than {row} of {sq} x {sk}", (got, got_lse), (out, lse))
        complaints.settle(10)

    def test_a_mask_that_hides_nothing_changes_nothing(self, kernel: Kernel) -> None:
        """One query under the causal mask sees every key, as it does without one."""
        other = kernel_of(same_plan_as(kernel.plan, "full" if causal(kernel) else "causal"))
        complaints = Complaints()
        for keys in (1, 3, 63, 64, 65, 113, 127, 128, 129, 203, 239, 799, 1023, 1024, 1025, 4224):
            q, k, v = inputs(kernel.plan, 3, (1, keys), (8, 2), kind="wide")
            complaints.same(f"{keys} keys", run(other, q, k, v), run(kernel, q, k, v))
        complaints.settle(16)
