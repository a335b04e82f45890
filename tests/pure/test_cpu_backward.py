"""The CPU path of the backward against float64 autograd by the contract's own rule, and what is exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import flashgen
from flashgen.testing import make_inputs
from flashgen.testing_backward import judge_gradients
from tests.pure.cpu_grid import DIMS, DTYPES, KINDS, MASKS, one_problem, problems


def gradients(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, dlse: bool = False, scale: float | None = None
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor | None]:
    """(dq, dk, dv), dout and dlse."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, lse = flashgen.attention(q, k, v, causal=causal, softmax_scale=scale, return_lse=True)
    generator = torch.Generator().manual_seed(7)
    dout, given = (torch.randn(x.shape, generator=generator).to(x.dtype) for x in (out, lse))
    results, of = ((out, lse), (dout, given)) if dlse else ((out,), (dout,))
    dq, dk, dv = torch.autograd.grad(results, (q, k, v), of)
    return (dq, dk, dv), dout, given if dlse else None


@MASKS
@DIMS
def test_it_meets_the_acceptance_rule(d: int, dv: int, causal: bool) -> None:
    for index, (what, (q, k, v)) in enumerate(problems(d, dv)):
        got, dout, dlse = gradients(q, k, v, causal, dlse=index % 3 == 0)
        verdict = judge_gradients(got, dout, q, k, v, dlse=dlse, causal=causal)
        assert verdict.ok, f"{what}: {verdict}"


@KINDS
@DTYPES
def test_every_kind_of_numbers(kind: str, dtype: torch.dtype) -> None:
    q, k, v = one_problem(kind, dtype)
    got, dout, dlse = gradients(q, k, v, False, dlse=True, scale=0.2)
    verdict = judge_gradients(got, dout, q, k, v, dlse=dlse, softmax_scale=0.2)
    assert verdict.ok, verdict


def test_rows_that_see_no_key_get_zeros_whatever_stands_there() -> None:
    q, k, v = make_inputs("normal", (1, 9, 2, 16), (1, 4, 1, 16), (1, 4, 1, 24), dtype=torch.bfloat16)
    (dq, dk, dv), _, _ = gradients(q, k, v, True, dlse=True)
    assert dq[:, :5].eq(0).all()
    assert dq[:, 6:].ne(0).any()  # the row before sees one key: its P is 1 whatever q is
    q[:, :5] = math.nan
    assert torch.equal(gradients(q, k, v, True, dlse=True)[0][1], dk)
    assert torch.equal(gradients(q, k, v, True, dlse=True)[0][2], dv)


def test_keys_that_nobody_sees_get_zeros() -> None:
    q, k, v = make_inputs("normal", (1, 1, 4, 16), (1, 300, 2, 16), (1, 300, 2, 16), dtype=torch.float16)
    plain = gradients(q, k, v, True)[0]
    assert all(x.isfinite().all() for x in plain)
    q, k, v = make_inputs("normal", (1, 2, 4, 16), (1, 2, 2, 16), (1, 2, 2, 16), dtype=torch.float16)
    out, lse = flashgen.attention(q[:, :1], k[:, :1], v[:, :1], return_lse=True)
    # As if it were a causal problem of two queries of which the second has no gradient.
    dout = torch.randn_like(q)
    dout[:, 1] = 0
    both, both_lse = flashgen.attention(q, k, v, causal=True, return_lse=True)
    assert torch.equal(both[:, :1], out)
    assert torch.equal(both_lse[:, :, :1], lse)
    _, dk, dv = torch.ops.flashgen.attention_bwd(dout, q, k, v, both, both_lse, None, None, True, False)
    assert dk[:, 1].eq(0).all()
    assert dv[:, 1].eq(0).all()


@pytest.mark.parametrize(
    "shape", [(0, 3, 4, 2, 2), (2, 0, 4, 2, 2), (2, 3, 0, 2, 2), (2, 3, 4, 0, 0)], ids=["batch", "q", "k", "heads"]
)
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    b, sq, sk, hq, hkv = shape
    q, k, v = (torch.randn(b, s, h, 16).half() for s, h in ((sq, hq), (sk, hkv), (sk, hkv)))
    got = gradients(q, k, v, True, dlse=True)[0]
    for x, gradient in zip((q, k, v), got, strict=True):
        assert gradient.shape == x.shape
        assert gradient.eq(0).all()


def test_gradients_of_a_key_head_are_those_of_its_query_heads_together() -> None:
    q, k, v = make_inputs("normal", (2, 33, 6, 16), (2, 47, 2, 16), (2, 47, 2, 24), dtype=torch.bfloat16)
    grouped = gradients(q, k, v, True)[0]
    repeated = gradients(q, *(x.repeat_interleave(3, dim=2) for x in (k, v)), True)[0]
    assert torch.equal(grouped[0], repeated[0])
    for one, three in zip(grouped[1:], repeated[1:], strict=True):
        torch.testing.assert_close(one, three.float().unflatten(2, (2, 3)).sum(3).bfloat16(), atol=3e-2, rtol=3e-2)


def test_strides_change_no_bit() -> None:
    q, k, v = make_inputs("normal", (2, 33, 4, 24), (2, 65, 4, 24), (2, 65, 4, 24), dtype=torch.bfloat16)
    expected = gradients(q, k, v, True)[0]
    for change in (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: torch.cat((x, x * math.nan), dim=1)[:, : x.shape[1]],
        lambda x: torch.stack((x, x * math.nan), dim=4)[..., 0],
    ):
        got = gradients(change(q), change(k), change(v), True)[0]
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_deterministic_changes_no_bit_here() -> None:
    q, k, v = (x.requires_grad_() for x in make_inputs("wide", *[(1, 70, 2, 16)] * 3, dtype=torch.float16))
    results = []
    for deterministic in (False, True):
        out = flashgen.attention(q, k, v, deterministic=deterministic)
        results.append(torch.autograd.grad(out.float().square().sum(), (q, k, v)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
