"""Tensors that must not share memory: what is written apart from what is read, and every element apart from the others.

What a tensor spans counts as its memory, gaps included: two views that interleave overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flashgen.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may lie in one place: a stride does not reach past what the smaller strides span."""
    if 0 in shape:
        return False
    span = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride < span:
            return True
        span += (size - 1) * stride
    return False


def byte_range(tensor: Tensor) -> range:
    """The addresses that a tensor spans: none without elements or without memory (meta)."""
    start = tensor.data_ptr()
    if not start or tensor.numel() == 0:
        return range(0)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(start, start + (last + 1) * tensor.element_size())


def check_apart(name: str, written: Tensor, others: Mapping[str, Tensor]) -> None:
    """Raise where a tensor that is written overlaps one of the others."""
    own = byte_range(written)
    for other, tensor in others.items():
        taken = byte_range(tensor)
        if max(own.start, taken.start) < min(own.stop, taken.stop):
            raise ArgumentError(
                f"{name}: its memory overlaps that of {other}, and both are in use until the end; expected memory of "
                f"its own: give torch.empty_like({name})"
            )
