"""The problems that the CPU path is judged on, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from flashgen.testing import INPUT_KINDS, make_inputs

SIZES = [(1, 1), (1, 77), (65, 65), (203, 47), (47, 203), (193, 129)]
HEADS = [(1, 1), (4, 2), (3, 1)]
MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
DIMS = pytest.mark.parametrize(("d", "dv"), [(8, 8), (40, 40), (64, 64), (72, 72), (128, 128), (192, 128), (256, 256)])
KINDS = pytest.mark.parametrize("kind", INPUT_KINDS)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


def problems(d: int, dv: int) -> Iterator[tuple[str, tuple[Tensor, Tensor, Tensor]]]:
    """(what it is, (q, k, v)) for every pair of lengths, over both dtypes, all kinds of numbers and groups of heads."""
    for index, (sq, sk) in enumerate(SIZES):
        hq, hkv = HEADS[index % len(HEADS)]
        kind = INPUT_KINDS[(index + d // 8) % len(INPUT_KINDS)]
        dtype = (torch.bfloat16, torch.float16)[index % 2]
        what = f"{sq}x{sk} heads {hq}/{hkv} {kind} {dtype}"
        yield what, make_inputs(kind, (2, sq, hq, d), (2, sk, hkv, d), (2, sk, hkv, dv), dtype=dtype, seed=index)


def one_problem(kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of more than a tile."""
    return make_inputs(kind, (1, 130, 2, 64), (1, 261, 2, 64), (1, 261, 2, 64), dtype=dtype)
