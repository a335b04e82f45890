"""The judge of gradients: it takes what is right, refuses each way of being wrong, and allows the needed noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flashgen import testing, testing_backward
from flashgen.testing import make_inputs
from flashgen.testing_backward import (
    Gradients,
    cut_off,
    judge_gradients,
    reference_gradients,
    working_precision_gradients,
)


def problem(kind: str = "normal", sq: int = 50, sk: int = 70, d: int = 64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = make_inputs(kind, (2, sq, 4, d), (2, sk, 2, d), (2, sk, 2, d), dtype=torch.bfloat16)
    return torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).bfloat16(), q, k, v


def naive(dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Gradients:
    """Autograd through the definition, one row at a time."""
    a, b, c = (x.double().requires_grad_() for x in (q, k, v))
    total = torch.zeros((), dtype=torch.float64)
    group, shift = q.shape[2] // k.shape[2], k.shape[1] - q.shape[1]
    for n in range(q.shape[0]):
        for h in range(q.shape[2]):
            for i in range(q.shape[1]):
                seen = min(k.shape[1], max(0, i + shift + 1)) if causal else k.shape[1]
                if seen:
                    scores = (b[n, :seen, h // group] @ a[n, i, h]) * scale
                    out = torch.softmax(scores, 0) @ c[n, :seen, h // group]
                    total = total + out @ dout[n, i, h].double()
                    if dlse is not None:
                        total = total + torch.logsumexp(scores, 0) * dlse[n, h, i].double()
    dq, dk, dv = torch.autograd.grad(total, (a, b, c))
    return dq, dk, dv


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dlse", [False, True])
@pytest.mark.parametrize("sizes", [(5, 9), (9, 5), (7, 7)])
def test_the_reference_is_the_definition(sizes: tuple[int, int], dlse: bool, causal: bool) -> None:
    sq, sk = sizes
    q, k, v = make_inputs("wide", (2, sq, 6, 16), (2, sk, 2, 16), (2, sk, 2, 24), dtype=torch.float16)
    dout = torch.randn(2, sq, 6, 24)
    of_lse = torch.randn(2, 6, sq) if dlse else None
    expected = naive(dout, of_lse, q, k, v, causal, 0.3)
    got = reference_gradients(dout, q, k, v, dlse=of_lse, causal=causal, softmax_scale=0.3)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    dout, q, k, v = problem()
    whole = reference_gradients(dout, q, k, v, causal=True)
    verdict = judge_gradients(working_precision_gradients(dout, q, k, v, causal=True), dout, q, k, v, causal=True)
    monkeypatch.setattr(testing, "CHUNK", 1000)
    for a, b in zip(reference_gradients(dout, q, k, v, causal=True), whole, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
    again = judge_gradients(working_precision_gradients(dout, q, k, v, causal=True), dout, q, k, v, causal=True)
    assert again.ok
    assert again.dq.l2_allowed == pytest.approx(verdict.dq.l2_allowed, rel=0.2)


@pytest.mark.parametrize("kind", testing.INPUT_KINDS)
def test_what_rounds_no_more_than_it_must_is_right(kind: str) -> None:
    dout, q, k, v = problem(kind)
    a, b, c = (x.bfloat16() for x in reference_gradients(dout, q, k, v, causal=True))
    verdict = judge_gradients((a, b, c), dout, q, k, v, causal=True)
    assert verdict.ok, verdict
    assert 0 <= verdict.share <= 1


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("fault", ["nan", "scaled", "late row", "zero"])
def test_each_fault_in_each_gradient_is_found(fault: str, which: int) -> None:
    dout, q, k, v = problem()
    made = [x.bfloat16() for x in reference_gradients(dout, q, k, v)]
    spoilt = made[which].clone()
    if fault == "nan":
        spoilt[0, 0, 0, 0] = math.nan
    elif fault == "scaled":
        spoilt *= 1.02
    elif fault == "zero":
        spoilt.zero_()
    else:
        spoilt[:, -1] += 0.05
    made[which] = spoilt
    verdict = judge_gradients((made[0], made[1], made[2]), dout, q, k, v)
    assert not verdict.ok
    assert [each.ok for each in verdict.each] == [i != which for i in range(3)]
    assert "WRONG" in str(verdict)


def test_the_noise_that_is_allowed_matters_only_where_terms_cancel() -> None:
    for kind, cancels in (("normal", False), ("wide", False), ("outliers", False), ("logits_-10000", True)):
        dout, q, k, v = problem(kind)
        pt = working_precision_gradients(dout, q, k, v)
        ref = reference_gradients(dout, q, k, v)
        verdict = judge_gradients(pt, dout, q, k, v)
        allowed = 1.1 * float((pt[0] - ref[0]).norm() / ref[0].norm())
        assert (verdict.dq.l2_allowed > allowed * 1.001) is cancels, kind


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_p_may_be_off_by_a_factor_that_is_right_for_lse(dtype: torch.dtype) -> None:
    """With scores near -1e4 by 1e-2, as tensor cores have it; with ordinary ones that is wrong."""
    for kind, right in (("logits_-10000", True), ("normal", False)):
        q, k, v = make_inputs(kind, (1, 63, 8, 128), (1, 127, 1, 128), (1, 127, 1, 128), dtype=dtype)
        dout = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        dlse = torch.randn((1, 8, 63), generator=torch.Generator().manual_seed(2))
        refs = reference_gradients(dout, q, k, v, dlse=dlse)
        a, b, c = ((x * 1.01).to(dtype) for x in refs)
        verdict = judge_gradients((a, b, c), dout, q, k, v, dlse=dlse)
        assert all(each.ok is right for each in verdict.each), f"{kind}: {verdict}"


@pytest.mark.parametrize("group", [8, 16])
def test_what_tensor_cores_cut_off_of_a_long_sum_is_allowed_and_not_twice_that(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One gradient for all rows of out: every term of dv has its sign, and every step of 16 loses in one direction."""
    q, k, v = make_inputs("normal", (1, 4224, group, 40), (1, 16, 1, 40), (1, 16, 1, 72), dtype=torch.float16)
    dout = torch.randn((1, 1, group, 72), generator=torch.Generator().manual_seed(1)).half()
    dout = dout.expand(1, 4224, group, 72)
    dq, dk, dv = reference_gradients(dout, q, k, v)
    lost = cut_off(group * 4224)
    assert lost == group * 264 * 2.0**-23
    once, twice = ((dq.half(), dk.half(), (dv * (1 - times * lost)).half()) for times in (1, 2))
    assert judge_gradients(once, dout, q, k, v).ok
    verdict = judge_gradients(twice, dout, q, k, v)
    assert [each.ok for each in verdict.each] == [True, True, False]
    if group == 16:  # without the allowance; with 8 the working precision's own error is as large
        monkeypatch.setattr(testing_backward, "CUT", 0.0)
        assert not judge_gradients(once, dout, q, k, v).dv.ok


def test_what_may_be_cut_off_of_an_ordinary_sum_is_next_to_nothing() -> None:
    assert cut_off(1024) == 2.0**-17 < 1e-5
    dout, q, k, v = problem()
    verdict = judge_gradients(working_precision_gradients(dout, q, k, v), dout, q, k, v)
    assert min(each.l2_allowed for each in verdict.each) > 100 * cut_off(2 * 50)


def test_one_key_leaves_nothing_to_compare_with() -> None:
    dout, q, k, v = problem(sk=1)
    zeros = torch.zeros_like(q), torch.zeros_like(k), reference_gradients(dout, q, k, v)[2].bfloat16()
    assert judge_gradients(zeros, dout, q, k, v).ok
    assert not judge_gradients((zeros[0] + 0.1, *zeros[1:]), dout, q, k, v).ok
