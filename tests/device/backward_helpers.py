"""What the device tests of the backward share."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

import flashgen
from flashgen.backward_calls import Operands
from flashgen.backward_kernel import BackwardKernel
from flashgen.generator import BackwardPlan, KernelSpec, plan_backward
from tests.device.helpers import Dims, both

Gradients = tuple[Tensor, ...]


@cache
def backward_plan(dims: Dims, dtype: str = "bf16", mask: str = "full", deterministic: bool = False) -> BackwardPlan:
    qk, v = both(dims)
    return plan_backward(
        KernelSpec.backward(head_dim=qk, head_dim_v=v, dtype=dtype, mask=mask, deterministic=deterministic)
    )


def backward_kernel(plan: BackwardPlan) -> BackwardKernel:
    return flashgen.get_kernel(plan)


def operands(q: Tensor, k: Tensor, v: Tensor, causal: bool, seed: int = 0, dlse: bool = False) -> Operands:
    """By flashgen's own forward."""
    with torch.no_grad():
        out, lse = flashgen.attention(q, k, v, causal=causal, return_lse=True)
    generator = torch.Generator(device=q.device).manual_seed(seed + 77)
    dout, of_lse = (torch.randn(x.shape, generator=generator, device=q.device) for x in (out, lse))
    return Operands(dout.to(q.dtype), q, k, v, out, lse, of_lse if dlse else None)


def gradients_of(loss: Any, *tensors: Tensor) -> Gradients:
    """Through autograd, of leaves that hold what the tensors hold."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    return torch.autograd.grad(loss(*leaves), leaves)
