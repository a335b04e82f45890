"""The judge itself: it takes what is right, refuses each way of being wrong, and does not depend on its chunks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flashgen import testing
from flashgen.testing import (
    INPUT_KINDS,
    Verdict,
    judge,
    make_inputs,
    reference_attention,
    working_precision_attention,
)


def problem(kind: str = "normal", d: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    return make_inputs(kind, (2, 50, 4, d), (2, 70, 2, d), (2, 70, 2, d), dtype=torch.bfloat16)


def naive(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """The definition, one row at a time."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), -math.inf, dtype=torch.float64)
    group, shift = q.shape[2] // k.shape[2], k.shape[1] - q.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            for i in range(q.shape[1]):
                seen = min(k.shape[1], max(0, i + shift + 1)) if causal else k.shape[1]
                if seen:
                    scores = (k[b, :seen, h // group].double() @ q[b, i, h].double()) * scale
                    lse[b, h, i] = torch.logsumexp(scores, 0)
                    out[b, i, h] = torch.softmax(scores, 0) @ v[b, :seen, h // group].double()
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(5, 9), (9, 5), (7, 7)])
def test_the_reference_is_the_definition(sizes: tuple[int, int], causal: bool) -> None:
    sq, sk = sizes
    q, k, v = make_inputs("wide", (2, sq, 6, 16), (2, sk, 2, 16), (2, sk, 2, 24), dtype=torch.float16)
    for got, expected in zip(
        reference_attention(q, k, v, causal=causal, softmax_scale=0.3), naive(q, k, v, causal, 0.3), strict=True
    ):
        torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)


def test_the_working_precision_is_worse_than_the_reference_but_near() -> None:
    q, k, v = problem()
    away = (working_precision_attention(q, k, v, causal=True) - reference_attention(q, k, v, causal=True)[0]).abs()
    assert 1e-4 < away.max() < 3e-2


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = problem()
    whole = reference_attention(q, k, v, causal=True)
    pt = working_precision_attention(q, k, v, causal=True)
    verdict = judge(pt, whole[1].float(), q, k, v, causal=True)
    monkeypatch.setattr(testing, "CHUNK", 70 * 7)
    for got, expected in zip(reference_attention(q, k, v, causal=True), whole, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)
    again = judge(pt, whole[1].float(), q, k, v, causal=True)
    assert again.max_error == pytest.approx(verdict.max_error, rel=0.2)
    assert again.l2_error == pytest.approx(verdict.l2_error, rel=0.05)


def test_the_rounded_reference_is_accepted() -> None:
    q, k, v = problem()
    out, lse = reference_attention(q, k, v)
    verdict = judge(out.bfloat16(), lse.float(), q, k, v)
    assert verdict.ok
    assert 0 < verdict.l2_error < 3e-3


@pytest.mark.parametrize(
    "spoil",
    ["nan", "one_value", "a_row", "scaled", "lse_nan", "lse_off", "lse_infinite"],
)
def test_each_wrong_result_is_refused(spoil: str) -> None:
    q, k, v = problem()
    exact, exact_lse = reference_attention(q, k, v)
    out, lse = exact.bfloat16(), exact_lse.float()
    if spoil == "nan":
        out[1, 2, 3, 4] = math.nan
    elif spoil == "one_value":
        out[1, 2, 3, 4] += 0.1
    elif spoil == "a_row":
        out[0, 49] = 0
    elif spoil == "scaled":
        out = (exact * 1.02).bfloat16()  # within the max rule here and there, and wrong everywhere
    elif spoil == "lse_nan":
        lse[0, 0, 0] = math.nan
    elif spoil == "lse_off":
        lse[1, 3, 49] += 1e-3
    else:
        lse[0, 1, 2] = -math.inf
    verdict = judge(out, lse, q, k, v)
    assert not verdict.ok
    assert "WRONG" in str(verdict)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_with_one_key_a_probability_may_be_one_to_rounding(dtype: torch.dtype) -> None:
    """Where the working precision is exact: a row in a hundred may be off by its last bit, not all of them."""
    q, k, v = make_inputs("normal", (2, 50, 4, 64), (2, 1, 2, 64), (2, 1, 2, 64), dtype=dtype)
    exact = reference_attention(q, k, v)[0].to(dtype)
    assert judge(exact, None, q, k, v).l2_error == 0
    bumped = (exact.double() * (1 + torch.finfo(dtype).eps)).to(dtype)
    assert not judge(bumped, None, q, k, v).ok
    some = exact.clone()
    some[0, 0] = bumped[0, 0]
    verdict = judge(some, None, q, k, v)
    assert 0 < verdict.l2_error < verdict.l2_allowed == torch.finfo(dtype).eps / 8


def test_empty_rows_must_be_exactly_empty() -> None:
    q, k, v = make_inputs("normal", (1, 9, 2, 16), (1, 4, 2, 16), (1, 4, 2, 16), dtype=torch.float16)
    exact, exact_lse = reference_attention(q, k, v, causal=True)
    out, lse = exact.half(), exact_lse.float()
    assert judge(out, lse, q, k, v, causal=True).ok
    lse[0, 0, 0] = -1e30
    assert not judge(out, lse, q, k, v, causal=True).ok


def test_without_keys_only_zero_and_minus_infinity_will_do() -> None:
    q, k, v = (torch.zeros(1, n, 2, 16).half() for n in (3, 0, 0))
    good, lse = torch.zeros(1, 3, 2, 16).half(), torch.full((1, 2, 3), -math.inf)
    assert judge(good, lse, q, k, v).ok
    assert not judge(good + 1, lse, q, k, v).ok
    assert not judge(good, lse.zero_(), q, k, v).ok
    assert not judge(good * math.nan, None, q, k, v).ok


def test_a_result_of_another_shape_is_refused() -> None:
    q, k, v = problem()
    with pytest.raises(ValueError, match="out: got shape"):
        judge(torch.zeros(2, 50, 4, 32), None, q, k, v)


def test_verdicts_with_nan_are_never_ok() -> None:
    assert Verdict(0.0, 1.0, 0.0, 1.0, 0.0).ok
    for bad in ((math.nan, 1.0, 0.0, 1.0, 0.0), (0.0, math.nan, 0.0, 1.0, 0.0), (0.0, 1.0, 0.0, 1.0, math.nan)):
        assert not Verdict(*bad).ok


def test_kinds_of_numbers_are_what_they_say() -> None:
    assert problem("normal")[0].float().std().item() == pytest.approx(1, abs=0.05)
    assert problem("wide")[0].float().std().item() == pytest.approx(3, abs=0.15)
    big = make_inputs("outliers", (8, 64, 8, 64), (1, 1, 1, 64), (1, 1, 1, 64), dtype=torch.float16)[0].abs()
    assert 0.0003 < (big > 6).float().mean().item() < 0.001
    for kind, middle in (("logits_-100", -100), ("logits_-10000", -10_000)):
        for d in (8, 64, 256):
            q, k, _ = problem(kind, d)
            logits = (q[0, :, 0].double() @ k[0, :, 0].double().T) / math.sqrt(d)
            assert logits.mean().item() == pytest.approx(middle, rel=0.02)
            assert (logits - middle).abs().max() < 0.2 * abs(middle)
    with pytest.raises(ValueError, match="expected one of normal"):
        problem("strange")
    for kind, ratio in (("rising", 2**2.8), ("steep", 2**8)):
        k = make_inputs(kind, (1, 1, 1, 256), (1, 65, 8, 256), (1, 65, 8, 8), dtype=torch.bfloat16)[1].float()
        assert (k[:, 0].std() / k[:, -1].std()).item() == pytest.approx(ratio, rel=0.1)
        assert k[:, -1].std().item() == pytest.approx(1, abs=0.05)
    assert len(INPUT_KINDS) == 7


def test_the_seed_decides() -> None:
    assert torch.equal(problem()[0], problem()[0])
    shapes = [(1, 2, 1, 8)] * 3
    a, b = (make_inputs("normal", *shapes, dtype=torch.half, seed=seed)[0] for seed in (0, 1))
    assert not torch.equal(a, b)
