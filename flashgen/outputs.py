"""Shapes and strides of the results, the same for CUDA, CPU and fake tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def dense_copy(tensor: Tensor) -> Tensor:
    """A copy whose rows lie one after another, at an address that any copy engine takes."""
    return tensor.clone(memory_format=torch.contiguous_format)


def dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected = expected * size
    return True


def follows_q(q: Tensor, head_dim_v: int) -> bool:
    """Whether out takes q's strides: when q is dense with a contiguous last dimension, and their shapes agree."""
    return bool(q.shape[3] == head_dim_v and q.stride(3) == 1 and dense(q.shape, q.stride()))


def new_out(q: Tensor, head_dim_v: int) -> Tensor:
    """Room for out, (batch, seqlen_q, heads_q, d_v): q's strides where follows_q, else contiguous."""
    if follows_q(q, head_dim_v):
        return torch.empty_like(q)
    return q.new_empty((q.shape[0], q.shape[1], q.shape[2], head_dim_v))


def new_lse(q: Tensor) -> Tensor:
    """Room for the log-sum-exp, (batch, heads_q, seqlen_q) float32."""
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)


def new_gradients(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Room for dq, dk and dv: each with its tensor's strides where that is dense, else contiguous."""
    return new_out(q, q.shape[3]), new_out(k, k.shape[3]), new_out(v, v.shape[3])


def fill_empty(out: Tensor, lse: Tensor | None) -> None:
    """The results of rows that see no key."""
    out.zero_()
    if lse is not None:
        lse.fill_(float("-inf"))
