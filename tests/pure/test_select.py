"""Every wrong argument is refused with what was got, what is legal and what is near."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import flashgen
from flashgen.errors import ArgumentError, NotAvailableError
from flashgen.select import arch_of, check_scale, select


def t(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> Tensor:
    return torch.zeros(*shape, dtype=dtype, device=device)


def good() -> tuple[Tensor, Tensor, Tensor]:
    return t(2, 5, 4, 64), t(2, 7, 2, 64), t(2, 7, 2, 64)


BAD: dict[str, tuple[tuple[Tensor, Tensor, Tensor], str]] = {
    "rank of q": ((t(5, 4, 64), *good()[1:]), r"q: got 3 dimensions \(5, 4, 64\); expected 4"),
    "rank of v": ((*good()[:2], t(1, 2, 7, 2, 64)), r"v: got 5 dimensions"),
    "batch": ((t(3, 5, 4, 64), *good()[1:]), "batch: got q 3, k 2, v 2"),
    "seqlen of v": ((*good()[:2], t(2, 8, 2, 64)), "seqlen of k and v: got 7 and 8"),
    "heads of v": ((*good()[:2], t(2, 7, 1, 64)), "heads of k and v: got 2 and 1"),
    "head dim of k": ((good()[0], t(2, 7, 2, 72), good()[2]), "head dim of q and k: got 64 and 72"),
    "heads do not divide": ((t(2, 5, 6, 64), t(2, 7, 4, 64), t(2, 7, 4, 64)), r"got q 6 and k, v 4.*nearest legal.* 3"),
    "more kv heads": ((t(2, 5, 2, 64), t(2, 7, 4, 64), t(2, 7, 4, 64)), r"got q 2 and k, v 4.*nearest legal.* 2"),
    "no kv head": ((t(2, 5, 2, 64), t(2, 7, 0, 64), t(2, 7, 0, 64)), "got q 2 and k, v 0"),
    "head dim 63": ((t(1, 1, 1, 63), t(1, 1, 1, 63), t(1, 1, 1, 63)), "got 63; expected a multiple of 8.*nearest.*64"),
    "head dim 0": ((t(1, 1, 1, 0), t(1, 1, 1, 0), t(1, 1, 1, 0)), "got 0; expected a multiple of 8.*nearest.*8"),
    "head dim 264": ((t(1, 1, 1, 264), t(1, 1, 1, 264), t(1, 1, 1, 264)), "got 264; expected.* to 256; nearest: 256"),
    "head dim of v": ((t(1, 1, 1, 64), t(1, 1, 1, 64), t(1, 1, 1, 20)), "head dim of v: got 20.*24"),
    "dtypes mixed": ((good()[0], good()[1].half(), good()[2]), "got q torch.bfloat16 and k torch.float16"),
    "float32": (tuple(x.float() for x in good()), "got torch.float32; expected torch.float16 or torch.bfloat16"),
    "devices mixed": ((*good()[:2], t(2, 7, 2, 64, device="meta")), "v is on meta and q on cpu"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tensors_are_refused(name: str) -> None:
    tensors, said = BAD[name]
    with pytest.raises(ArgumentError, match=said):
        select(*tensors, causal=False)
    with pytest.raises(ArgumentError, match=said):
        flashgen.attention(*tensors)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-46, 1e39])
def test_bad_scales_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="softmax_scale: got"):
        check_scale(scale, 64)
    with pytest.raises(ValueError, match="softmax_scale: got"):
        flashgen.attention(*good(), softmax_scale=scale)


def test_the_default_scale_is_one_over_the_root_of_the_head_dim_of_q() -> None:
    assert check_scale(None, 64) == 0.125
    assert check_scale(2, 64) == 2.0


@pytest.mark.parametrize("name", ["window", "softcap", "alibi_slopes", "attn_bias", "sink", "dropout_p"])
def test_a_feature_without_a_kernel_is_refused_by_name(name: str) -> None:
    with pytest.raises(NotAvailableError, match=f"{name} is not available yet"):
        flashgen.attention(*good(), **{name: (-1, 0) if name == "window" else 0.0})


def test_fp8_is_known_and_not_there() -> None:
    with pytest.raises(NotAvailableError, match="float8_e4m3fn is not available yet"):
        select(*(x.to(torch.float8_e4m3fn) for x in good()), causal=False)


def test_the_spec_says_what_the_tensors_are() -> None:
    spec = select(t(1, 5, 4, 192, dtype=torch.half), t(1, 7, 2, 192, dtype=torch.half),
                  t(1, 7, 2, 128, dtype=torch.half), causal=True)  # fmt: skip
    assert spec.name == "attention_fwd_fa3_sm90a_fp16_d192x128_causal"
    assert select(*good(), causal=False).mask == "full"


def test_a_gpu_without_kernels_is_named() -> None:
    assert arch_of((9, 0)) == "sm90a"
    with pytest.raises(NotAvailableError, match=r"NVIDIA A100 has compute capability 8\.0.*sm90a"):
        arch_of((8, 0), "NVIDIA A100")


def test_fake_tensors_are_checked_like_real_ones() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = t(2, 5, 4, 64), t(2, 7, 3, 64), t(2, 7, 3, 64)
        with pytest.raises(ArgumentError, match="heads: got q 4 and k, v 3"):
            select(q, k, v, causal=False)
        assert select(q, q, q, causal=True).mask == "causal"
