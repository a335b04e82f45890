"""Every check of a backward's arguments, and the KernelSpec that serves them. Fake tensors will do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashgen.errors import ArgumentError
from flashgen.generator.spec import KernelSpec
from flashgen.overlap import check_apart, overlaps_itself
from flashgen.select import DEFAULT_ARCH, check_like, check_tensors, select
from flashgen.tensormap import ALIGNMENT, legal_layout

if TYPE_CHECKING:
    from torch import Tensor


def check_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None
) -> None:
    """Raise unless these are the operands of one backward: what a forward took and gave, and the gradients of that."""
    import torch

    check_tensors(q, k, v)
    rows = (*q.shape[:3], v.shape[3])
    for name, tensor in (("dout", dout), ("out", out)):
        check_like(name, tensor, rows, q.dtype, q)
    numbers = (q.shape[0], q.shape[2], q.shape[1])
    for name, given in (("lse", lse), ("dlse", dlse)):
        if given is not None:
            check_like(name, given, numbers, torch.float32, q)


def check_gradients(
    dq: Tensor, dk: Tensor, dv: Tensor, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    dlse: Tensor | None,
) -> None:  # fmt: skip
    """Raise unless gradients can be written into these tensors while the operands are read."""
    others = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    others |= {} if dlse is None else {"dlse": dlse}
    for name, to, like in (("dq", dq, q), ("dk", dk, k), ("dv", dv, v)):
        check_like(name, to, tuple(like.shape), q.dtype, q)
        strides, itemsize = to.stride(), to.element_size()
        legal = legal_layout(to.shape, strides, itemsize) and not overlaps_itself(to.shape, strides)
        if to.data_ptr() % ALIGNMENT or not legal:
            raise ArgumentError(
                f"{name}: got strides {strides} at address {to.data_ptr():#x}; expected a contiguous last dimension, "
                f"other strides multiples of {ALIGNMENT // itemsize} without overlaps, and an address that is a "
                f"multiple of {ALIGNMENT}"
            )
        check_apart(name, to, others)
        others[name] = to


def select_backward(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, deterministic: bool, arch: str = DEFAULT_ARCH
) -> KernelSpec:
    """The spec of the kernel that serves these tensors, after every check of them."""
    return select(q, k, v, causal=causal, arch=arch).backward_of(deterministic)
