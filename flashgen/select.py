"""Tensors to kernel: every check of a call's arguments, and the KernelSpec that serves them. Fake tensors will do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flashgen.errors import ArgumentError, NotAvailableError
from flashgen.generator.spec import MAX_HEAD_DIM, KernelSpec
from flashgen.overlap import check_apart, overlaps_itself
from flashgen.tensormap import ALIGNMENT, legal_layout

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}
ARCHS = {(9, 0): "sm90a"}  # compute capability -> compiler target
DEFAULT_ARCH = "sm90a"  # whose plan CPU tensors follow
HEAD_DIM_STEP = 8
MAX_SCALE_EXPONENT = 126  # the scale times log2(e) must be neither 0 nor infinite in float32
ORDER = "(batch, seqlen, heads, head_dim)"


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless the three tensors make one attention problem that a kernel takes."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            got = tuple(tensor.shape)
            raise ArgumentError(f"{name}: got {tensor.dim()} dimensions {got}; expected 4, {ORDER}")
    _check_dtypes(q, k, v)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.device != q.device:
            raise ArgumentError(f"{name} is on {tensor.device} and q on {q.device}; expected one device")
    _check_shapes(q.shape, k.shape, v.shape)


def _check_dtypes(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ArgumentError(f"got q {q.dtype} and {name} {tensor.dtype}; expected one dtype for q, k and v")
    if str(q.dtype) not in DTYPES:
        if str(q.dtype).startswith("torch.float8"):
            raise NotAvailableError(f"dtype {q.dtype} is not available yet (available: {', '.join(DTYPES)})")
        raise ArgumentError(f"dtype: got {q.dtype}; expected {' or '.join(DTYPES)}; nearest: q.to(torch.bfloat16)")


def _check_shapes(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> None:
    if k[0] != q[0] or v[0] != q[0]:
        raise ArgumentError(f"batch: got q {q[0]}, k {k[0]}, v {v[0]}; expected the same for all three")
    if v[1] != k[1]:
        raise ArgumentError(f"seqlen of k and v: got {k[1]} and {v[1]}; expected the same")
    if v[2] != k[2]:
        raise ArgumentError(f"heads of k and v: got {k[2]} and {v[2]}; expected the same")
    if k[3] != q[3]:
        raise ArgumentError(f"head dim of q and k: got {q[3]} and {k[3]}; expected the same")
    heads_q, heads_kv = q[2], k[2]
    if heads_q != heads_kv and (heads_kv == 0 or heads_q % heads_kv):
        below = max((n for n in range(1, min(heads_q, heads_kv) + 1) if heads_q % n == 0), default=heads_q)
        raise ArgumentError(
            f"heads: got q {heads_q} and k, v {heads_kv}; expected q's to be a multiple of k's; "
            f"nearest legal for k and v: {below}"
        )
    _check_head_dim("q and k" if q[3] != v[3] else "q, k and v", q[3])
    if q[3] != v[3]:
        _check_head_dim("v", v[3])


def _check_head_dim(whose: str, got: int) -> None:
    if got % HEAD_DIM_STEP == 0 and HEAD_DIM_STEP <= got <= MAX_HEAD_DIM:
        return
    legal = f"a multiple of {HEAD_DIM_STEP} from {HEAD_DIM_STEP} to {MAX_HEAD_DIM}"
    up = min(max(-(-got // HEAD_DIM_STEP) * HEAD_DIM_STEP, HEAD_DIM_STEP), MAX_HEAD_DIM)
    advice = f"pad with zeros to {up}" if got <= MAX_HEAD_DIM else str(up)
    raise ArgumentError(f"head dim of {whose}: got {got}; expected {legal}; nearest: {advice}")


def check_scale(softmax_scale: float | None, head_dim: int) -> float:
    """The scale to use: the default 1/sqrt(head_dim), or the given one if float32 holds it in the kernel's units."""
    if softmax_scale is None:
        return 1.0 / math.sqrt(head_dim)
    if not 2.0**-MAX_SCALE_EXPONENT <= softmax_scale <= 2.0**MAX_SCALE_EXPONENT:
        legal = f"a number from 2^-{MAX_SCALE_EXPONENT} to 2^{MAX_SCALE_EXPONENT}, or None"
        raise ArgumentError(f"softmax_scale: got {softmax_scale}; expected {legal}")
    return float(softmax_scale)


def check_no_grad(*tensors: Tensor) -> None:
    """Raise when autograd would want a backward pass of what has none: it must not be dropped in silence."""
    import torch

    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise NotAvailableError(
            "an input has requires_grad=True, and this has no backward pass: call flashgen.attention, which has, "
            "or call it under torch.no_grad(), or detach the inputs"
        )


def check_features(given: Mapping[str, Any]) -> None:
    """Raise for keyword features that no kernel has yet, when they are asked for."""
    for name, value in given.items():
        if value is not None:
            raise NotAvailableError(f"{name} is not available yet (available: causal, softmax_scale, return_lse)")


def arch_of(capability: tuple[int, int], name: str = "this GPU") -> str:
    """The compiler target for a compute capability."""
    if capability not in ARCHS:
        legal = ", ".join(f"{arch} (compute capability {a}.{b})" for (a, b), arch in ARCHS.items())
        major, minor = capability
        raise NotAvailableError(
            f"{name} has compute capability {major}.{minor}, for which no kernel is available yet "
            f"(available: {legal}); CPU tensors work anywhere"
        )
    return ARCHS[capability]


def select(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, arch: str = DEFAULT_ARCH) -> KernelSpec:
    """The spec of the kernel that serves these tensors, after every check of them."""
    check_tensors(q, k, v)
    return KernelSpec.forward(
        head_dim=int(q.shape[3]),
        head_dim_v=int(v.shape[3]),
        dtype=DTYPES[str(q.dtype)],
        mask="causal" if causal else "full",
        arch=arch,
    )


def check_out(out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless results can be written into these tensors while q, k and v are read."""
    expected = (*q.shape[:3], v.shape[3])
    check_like("out", out, expected, q.dtype, q)
    check_no_grad(out)
    itemsize, strides = out.element_size(), out.stride()
    if overlaps_itself(expected, strides):
        raise ArgumentError(
            f"out: got strides {strides} for shape {expected}, where elements overlap; expected strides that are not 0 "
            f"and each reach past what the smaller ones span: give a new tensor, torch.empty({expected}, ...)"
        )
    if out.data_ptr() % ALIGNMENT or not legal_layout(expected, strides, itemsize):
        raise ArgumentError(
            f"out: got strides {strides} at address {out.data_ptr():#x}; expected a contiguous last dimension, other "
            f"strides multiples of {ALIGNMENT // itemsize}, and an address that is a multiple of {ALIGNMENT}"
        )
    check_apart("out", out, {"q": q, "k": k, "v": v})
    if lse is not None:
        import torch

        check_like("lse", lse, (q.shape[0], q.shape[2], q.shape[1]), torch.float32, q)
        check_no_grad(lse)
        if not lse.is_contiguous():
            raise ArgumentError(f"lse: got strides {lse.stride()}; expected a contiguous tensor")
        check_apart("lse", lse, {"q": q, "k": k, "v": v, "out": out})


def check_like(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: Any, q: Tensor) -> None:
    """Raise unless a tensor has that shape and dtype, and lies where q does."""
    for what, got, expected in (
        ("shape", tuple(tensor.shape), shape), ("dtype", tensor.dtype, dtype), ("device", tensor.device, q.device),
    ):  # fmt: skip
        if got != expected:
            raise ArgumentError(f"{name}: got {what} {got}; expected {expected}")
