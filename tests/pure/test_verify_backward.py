"""Verification finds what is wrong with a backward, and gives it receipts. The CPU path runs here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flashgen.backward_cases import DOUT_LAYOUTS, BackwardCase, backward_cases
from flashgen.backward_kernel import BackwardKernel
from flashgen.callable_kernel import Code
from flashgen.cases import LAYOUTS, Case
from flashgen.generator import KernelSpec, plan_backward
from flashgen.receipts import record, verified
from flashgen.verify import verify_kernel

CPU = torch.device("cpu")
FEW = [
    BackwardCase(Case(1, 5, 9, 2, 1, layout="surrounded"), "surrounded", dlse=True),
    BackwardCase(Case(2, 9, 5, 2, 2, "wide", "transposed"), "transposed"),
    BackwardCase(Case(1, 130, 200, 2, 1, "logits_-100", "misaligned"), "misaligned"),
    BackwardCase(Case(1, 7, 7, 4, 4, "outliers", "packed"), "expanded"),
    BackwardCase(Case(2, 6, 8, 4, 2, layout="expanded_heads"), "expanded_rows", dlse=True),
    BackwardCase(Case(1, 6, 8, 2, 2, layout="strided_last", softmax_scale=0.5), "strided_last"),
    BackwardCase(Case(1, 6, 8, 2, 2, "logits_-10000", "odd_rows"), "odd_rows"),
]


def kernel(
    kind: type[BackwardKernel] = BackwardKernel, mask: str = "causal", deterministic: bool = True, head_dim: int = 16
) -> BackwardKernel:
    spec = KernelSpec.backward(head_dim=head_dim, mask=mask, deterministic=deterministic)
    return kind(plan_backward(spec), lambda: Code(b"cubin", "5" * 64, {"nvrtc_version": "13.0.88"}))


def spoilt(change: Callable[[Tensor, Tensor, Tensor], None], deterministic: bool = True) -> BackwardKernel:
    class Spoilt(BackwardKernel):
        def into(self, *arguments, **keywords):  # type: ignore[no-untyped-def]
            super().into(*arguments, **keywords)
            change(*arguments[7:])

    return kernel(Spoilt, deterministic=deterministic)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_right_kernel_passes_every_layout(mask: str, deterministic: bool) -> None:
    done = verify_kernel(kernel(mask=mask, deterministic=deterministic), CPU, FEW)
    assert done.ok, done.failures
    assert (done.cases, done.device) == (7, "cpu")
    assert 0 < done.worst_error <= 1


def test_its_own_cases_straddle_the_tile_and_use_everything() -> None:
    made = kernel(head_dim=128).plan
    found = backward_cases(made)
    assert {each.case.kind for each in found} == {"normal", "wide", "outliers", "logits_-100", "logits_-10000"}
    assert {each.case.layout for each in found} == set(LAYOUTS)
    assert {each.dout for each in found} == set(DOUT_LAYOUTS)
    assert {each.dlse for each in found} == {False, True}
    assert {each.case.heads_q // each.case.heads_kv for each in found} >= {1, 2, 3, 4, 8}
    blocks = [-(-each.case.seqlen_k // made.block_n) * each.case.batch * each.case.heads_kv for each in found]
    assert max(blocks) > 132 // 4


def test_operands_lie_as_they_say_and_are_the_reference_s() -> None:
    made = kernel().plan
    plain = BackwardCase(Case(2, 6, 6, 4, 2)).operands(made, CPU, 3)
    for layout in ("surrounded", "transposed", "misaligned", "strided_last", "odd_rows"):
        laid = BackwardCase(Case(2, 6, 6, 4, 2), layout).operands(made, CPU, 3)
        for a, b in ((plain.dout, laid.dout), (plain.out, laid.out)):
            assert torch.equal(a, b), layout
            assert not (b.is_contiguous() and b.data_ptr() % 16 == 0), layout
    assert BackwardCase(Case(2, 6, 6, 4, 2), "expanded_rows").operands(made, CPU, 3).dout.stride(1) == 0
    assert BackwardCase(Case(2, 6, 6, 4, 2), "expanded").operands(made, CPU, 3).dout.stride() == (0, 0, 0, 0)


def write_after(dq: Tensor, dk: Tensor, dv: Tensor) -> None:
    dk.as_strided(dk.shape, dk.stride(), dk.storage_offset() + dk.stride(1))[:, -1] = 0


TURNS = itertools.cycle((0.0, 1e-2))


def every_other_time(dq: Tensor, dk: Tensor, dv: Tensor) -> None:
    dq[0, -1, 0, 0] += next(TURNS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda dq, dk, dv: dq[:, -1].fill_(math.nan), "dq WRONG"),
        (lambda dq, dk, dv: dk.mul_(1.1), "dk WRONG"),
        (lambda dq, dk, dv: dv.zero_(), "dv WRONG"),
        (write_after, "memory outside the gradients"),
        (every_other_time, "two runs on the same input differ"),
    ],
    ids=["nan", "scaled", "zero", "stray", "unsteady"],
)
def test_each_fault_is_found(change: Callable[[Tensor, Tensor, Tensor], None], said: str) -> None:
    done = verify_kernel(spoilt(change), CPU, [BackwardCase(Case(1, 40, 90, 2, 1), dlse=True)])
    assert not done.ok
    assert said in done.failures[0].reason
    assert done.failures[0].case.startswith("batch 1, seqlen 40 x 90")


def test_a_kernel_that_is_not_deterministic_may_differ_but_not_be_wrong_once() -> None:
    calls = [0]

    def wrong_at_second(dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        calls[0] += 1
        if calls[0] == 2:
            dq.mul_(2)

    case = [BackwardCase(Case(1, 40, 90, 2, 1))]
    assert verify_kernel(spoilt(every_other_time, False), CPU, case).ok
    done = verify_kernel(spoilt(wrong_at_second, False), CPU, case)
    assert "dq WRONG" in done.failures[0].reason


def test_a_backward_gets_a_receipt(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    done = verify_kernel(kernel(), CPU, FEW[:1])
    kept = record([done], path)
    assert list(kept) == ["attention_bwd_fa3_sm90a_bf16_d16_causal_deterministic"]
    assert verified(done.name, "5" * 64, kept)


def test_cases_of_the_other_direction_are_refused() -> None:
    done = verify_kernel(kernel(), CPU, [Case(1, 5, 9, 2, 1)])
    assert "expected a BackwardCase" in done.failures[0].reason
