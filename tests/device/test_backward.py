"""The acceptance rule for gradients over the grid of the contract, equality of bits, and what is exactly zero."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import flashgen
from flashgen.backward_cases import DOUT_LAYOUTS, BackwardCase, backward_cases
from flashgen.cases import LAYOUTS, Case
from flashgen.generator import BackwardPlan, KernelPlan
from flashgen.guarded import same_bits
from flashgen.testing import INPUT_KINDS
from flashgen.verify import verify_kernel
from flashgen.verify_backward import run_backward_case
from tests.device.backward_helpers import backward_kernel, backward_plan, operands
from tests.device.covering import all_pairs, covering, pairs_of
from tests.device.helpers import DEVICE, DTYPES, MASKS, SEQLENS, SLEEP, Complaints, Dims, inputs, label, plan_for

HEAD_DIMS: tuple[Dims, ...] = (
    8, 16, 24, 40, 64, 72, 80, 96, 112, 128, 136, 160, 192, 200, 224, 256, (192, 128), (128, 64), (96, 128), (40, 72),
    (256, 8), (8, 256),
)  # fmt: skip
FACTORS: dict[str, tuple[Any, ...]] = {
    "dims": HEAD_DIMS,
    "seqlen_q": SEQLENS,
    "seqlen_k": SEQLENS,
    "mask": MASKS,
    "dtype": tuple(DTYPES),
    "deterministic": (False, True),
    "dlse": (False, True),
    "batch": (1, 2, 3, 9),
    "group": (1, 2, 3, 8),
    "kind": INPUT_KINDS,
    "layout": tuple(LAYOUTS),
    "dout": tuple(DOUT_LAYOUTS),
}


@cache
def rows() -> list[dict[str, Any]]:
    return covering(FACTORS)


def plan_of(row: dict[str, Any]) -> BackwardPlan:
    return backward_plan(row["dims"], row["dtype"], row["mask"], row["deterministic"])


STEADY = (8, 64, 72, 80, 128, 160, (192, 128), 256)


def kernels() -> list[BackwardPlan | KernelPlan]:
    steady = [(dims, mask) for dims in STEADY for mask in MASKS]
    return [
        *map(plan_of, rows()),
        *(backward_plan(dims, "bf16", mask, True) for dims, mask in steady),
        *(plan_for(dims, "bf16", mask, 1000) for dims, mask in steady),
    ]


def case_of(row: dict[str, Any]) -> BackwardCase:
    scores = row["batch"] * row["group"] * row["seqlen_q"] * row["seqlen_k"]
    heads_kv = 1 if scores > 50_000_000 else 2
    kind = row["kind"]
    # With one key P is exactly 1, to the working precision too; a kernel's float32 LSE of 1e4 has an ulp of 1e-3.
    if row["seqlen_k"] == 1 and kind == "logits_-10000":
        kind = "normal"
    batch = min(row["batch"], 2) if scores > 100_000_000 else row["batch"]
    heads = heads_kv * row["group"], heads_kv
    return BackwardCase(
        Case(batch, row["seqlen_q"], row["seqlen_k"], *heads, kind, row["layout"]), row["dout"], row["dlse"]
    )


def test_the_selection_holds_every_pair_of_values() -> None:
    held = set().union(*(pairs_of(row, list(FACTORS)) for row in rows()))
    assert all_pairs(FACTORS) <= held


@pytest.mark.parametrize("dims", HEAD_DIMS, ids=label)
def test_gradients_are_within_the_acceptance_rule(dims: Dims) -> None:
    """Also: no write outside them, and with ``deterministic`` the same bits 20 times."""
    mine = [row for row in rows() if row["dims"] == dims]
    complaints = Complaints()
    for seed, row in enumerate(mine):
        kernel, case = backward_kernel(plan_of(row)), case_of(row)
        verdict, wrong = run_backward_case(kernel, case, DEVICE, seed)
        what = f"{kernel.name}, {case}, seed {seed}"
        complaints.that(what, "" if verdict.ok else str(verdict))
        complaints.that(what, wrong)
    complaints.settle(at_least=2 * len(mine))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dims", [64, 128, 256], ids=label)
def test_each_passes_its_own_cases(dims: Dims, mask: str, deterministic: bool) -> None:
    kernel = backward_kernel(backward_plan(dims, "bf16", mask, deterministic))
    done = verify_kernel(kernel, DEVICE, backward_cases(kernel.plan))
    assert done.ok, "\n".join(f"{failure.case}: {failure.reason}" for failure in done.failures)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dims", STEADY, ids=label)
def test_deterministic_means_the_same_bits_100_times_beside_other_work(dims: Dims, mask: str) -> None:
    plan = plan_for(dims, "bf16", mask, 1000)
    given = operands(*inputs(plan, 2, (1100, 1000), (8, 2), kind="wide"), mask == "causal", dlse=True)
    kernel = backward_kernel(backward_plan(dims, "bf16", mask, True))
    expected = kernel(*given)
    other, busy = torch.cuda.Stream(), torch.randn(4096, 4096, device=DEVICE)
    torch.cuda.synchronize()
    different = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(100):
        with torch.cuda.stream(other):
            busy = (busy @ busy).clamp(-1, 1)
        for got, want in zip(kernel(*given), expected, strict=True):
            different += (got.view(torch.int16) != want.view(torch.int16)).any()
    torch.cuda.synchronize()
    assert int(different) == 0


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dims", [64, 128, 256], ids=label)
def test_rows_without_keys_and_keys_without_rows_get_zeros(dims: Dims, deterministic: bool) -> None:
    complaints = Complaints()
    plan = backward_plan(dims, "bf16", "causal", deterministic)
    for sq, sk in ((4224, 63), (1025, 1), (1024, 799), (203, 202), (65, 1), (3, 1), (400, 16)):
        given = operands(*inputs(plan_for(dims, "bf16", "causal", sk), 2, (sq, sk), (4, 2)), True, dlse=True)
        dq, dk, dv = (x.fill_(float("nan")) for x in (torch.empty_like(x) for x in given[1:4]))
        backward_kernel(plan).into(*given, dq, dk, dv)
        complaints.that(f"{sq} x {sk}", "" if not bool(dq[:, : sq - sk].any()) else "a row without keys has a gradient")
        finite = all(bool(x.isfinite().all()) for x in (dq, dk, dv))
        complaints.that(f"{sq} x {sk}", "" if finite else "something is not finite")
    # Keys that only rows without a gradient see.
    q, k, v = inputs(plan_for(dims, "bf16", "causal", 500), 1, (500, 500), (4, 2))
    given = operands(q, k, v, True)
    given.dout[:, 200:] = 0
    _, dk, dv = backward_kernel(plan)(*given)
    zero = not bool(dk[:, 200:].any()) and not bool(dv[:, 200:].any())
    complaints.that("keys behind the last gradient", "" if zero else "they have a gradient")
    complaints.settle(15)


@pytest.mark.parametrize("seqlens", [(0, 5), (5, 0), (0, 0)])
def test_empty_sequences_get_zeros(seqlens: tuple[int, int]) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(plan_for(64, "bf16", "causal", 300), 2, seqlens, (4, 2)))
    out, lse = flashgen.attention(q, k, v, causal=True, return_lse=True)
    for x in torch.autograd.grad(out.sum() + lse.sum(), (q, k, v)):
        assert not bool(x.any())


def test_a_dense_or_a_strided_operand_gives_the_same_bits() -> None:
    kernel = backward_kernel(backward_plan(64, "bf16", "causal", True))
    given = operands(*inputs(plan_for(64, "bf16", "causal", 300), 2, (203, 239), (4, 2)), True, dlse=True)
    expected = kernel(*given)
    complaints = Complaints()
    for name, change in DOUT_LAYOUTS.items():
        if name.startswith("expanded"):
            continue
        for i, which in enumerate(("dout", "q", "k", "v", "out")):
            got = kernel(*given._replace(**{which: change(given[i])}))
            same = all(same_bits(a.contiguous(), b) for a, b in zip(got, expected, strict=True))
            complaints.that(f"{which} {name}", "" if same else "other bits")
    complaints.settle(30)


def test_a_long_sleep_before_it_changes_nothing() -> None:
    """The workspace goes back to the allocator while kernels still wait to run."""
    kernel = backward_kernel(backward_plan(64, "bf16", "causal", True))
    given = operands(*inputs(plan_for(64, "bf16", "causal", 300), 2, (1000, 300), (4, 2)), True)
    expected = kernel(*given)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    got = kernel(*given)
    taken = [torch.full((n,), float("nan"), device=DEVICE) for n in (1 << 10, 1 << 16, 1 << 20, 1 << 21, 1 << 22)]
    assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True))
    del taken
