"""The CPU path against the reference by the contract's own rule, over the shapes where attention goes wrong."""

from __future__ import annotations

import math

import pytest
import torch

import flashgen
from flashgen.testing import judge, make_inputs, reference_attention
from tests.pure.cpu_grid import DIMS, DTYPES, KINDS, MASKS, one_problem, problems


@MASKS
@DIMS
def test_it_meets_the_acceptance_rule(d: int, dv: int, causal: bool) -> None:
    for what, (q, k, v) in problems(d, dv):
        out, lse = flashgen.attention(q, k, v, causal=causal, return_lse=True)
        verdict = judge(out, lse, q, k, v, causal=causal)
        assert verdict.ok, f"{what}: {verdict}"


@KINDS
@DTYPES
def test_every_kind_of_numbers(kind: str, dtype: torch.dtype) -> None:
    q, k, v = one_problem(kind, dtype)
    out, lse = flashgen.attention(q, k, v, return_lse=True)
    verdict = judge(out, lse, q, k, v)
    assert verdict.ok, verdict


def test_rows_that_see_no_key_are_zero_and_minus_infinity() -> None:
    q, k, v = make_inputs("normal", (1, 9, 2, 16), (1, 4, 1, 16), (1, 4, 1, 24), dtype=torch.bfloat16)
    out, lse = flashgen.attention(q, k, v, causal=True, return_lse=True)
    assert out[:, :5].eq(0).all()
    assert lse[:, :, :5].eq(-math.inf).all()
    assert lse[:, :, 5:].isfinite().all()
    # The first row that sees one key sees that key alone.
    assert torch.equal(out[0, 5, 0], v[0, 0, 0])
    assert torch.equal(out[0, 5, 1], v[0, 0, 0])


@pytest.mark.parametrize(
    "shape", [(0, 3, 4, 2, 2), (2, 0, 4, 2, 2), (2, 3, 0, 2, 2), (2, 3, 4, 0, 0)], ids=["batch", "q", "k", "heads"]
)
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    b, sq, sk, hq, hkv = shape
    q, k, v = (torch.randn(b, s, h, 16).half() for s, h in ((sq, hq), (sk, hkv), (sk, hkv)))
    out, lse = flashgen.attention(q, k, v, return_lse=True)
    assert out.shape == (b, sq, hq, 16)
    assert lse.shape == (b, hq, sq)
    assert out.eq(0).all()
    assert lse.eq(-math.inf).all()


def test_grouped_heads_read_their_own_keys() -> None:
    q, k, v = make_inputs("normal", (1, 5, 6, 16), (1, 7, 2, 16), (1, 7, 2, 16), dtype=torch.bfloat16)
    out = flashgen.attention(q, k, v)
    for head in range(6):
        alone = slice(head // 3, head // 3 + 1)
        expected = flashgen.attention(q[:, :, head : head + 1], k[:, :, alone], v[:, :, alone])
        assert torch.equal(out[:, :, head : head + 1], expected)


def test_strides_change_no_bit() -> None:
    q, k, v = make_inputs("normal", (2, 33, 4, 24), (2, 65, 4, 24), (2, 65, 4, 24), dtype=torch.bfloat16)
    expected = flashgen.attention(q, k, v, causal=True)
    for change in (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: torch.cat((x, x * math.nan), dim=1)[:, : x.shape[1]],
        lambda x: torch.stack((x, x * math.nan), dim=4)[..., 0],
    ):
        assert torch.equal(flashgen.attention(change(q), change(k), change(v), causal=True), expected)


def test_the_scale_is_used() -> None:
    q, k, v = make_inputs("normal", (1, 9, 1, 16), (1, 9, 1, 16), (1, 9, 1, 16), dtype=torch.float16)
    _, lse = flashgen.attention(q, k, v, softmax_scale=0.7, return_lse=True)
    _, expected = reference_attention(q, k, v, softmax_scale=0.7)
    torch.testing.assert_close(lse.double(), expected, atol=1e-5, rtol=1e-5)


def test_nan_in_an_input_that_is_seen_shows() -> None:
    q, k, v = make_inputs("normal", (1, 4, 1, 16), (1, 4, 1, 16), (1, 4, 1, 16), dtype=torch.float16)
    k[0, 3] = math.nan
    out = flashgen.attention(q, k, v, causal=True)
    assert out[0, 3].isnan().all()
    assert out[0, :3].isfinite().all()
