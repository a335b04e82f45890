"""TMA descriptors: which tensors one can describe as they are, and the 128 bytes that describe them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from flashgen.driver import NO_CONTEXT, driver
from flashgen.errors import LaunchError
from flashgen.params import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES

ALIGNMENT = 16  # bytes, of the base address and of every stride: the hardware's rule
STRIDE_LIMIT = 1 << 40  # bytes

# Values of the enums in cuda.h.
DATA_TYPES = {"fp16": 6, "bf16": 9}
_INTERLEAVE_NONE = 0
_SWIZZLES = {64: 3, 32: 2, 16: 1}  # elements of 2 bytes in the inner box -> 128B, 64B, 32B
_L2_PROMOTION_256B = 3
_OUT_OF_BOUNDS_ZEROS = 0


class TensorMap(NamedTuple):
    """What a descriptor says apart from the address: a 4-D tensor (d, seq, head, batch) and the box one copy moves."""

    data_type: int
    dims: tuple[int, int, int, int]
    strides: tuple[int, int, int]  # bytes, of seq, head and batch; 0 where the tensor is expanded
    box: tuple[int, int]  # elements of d, rows of seq
    swizzle: int


def legal_layout(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether a (batch, seq, heads, d) tensor with these element strides can be described without a copy.

    Dimensions of size 1 may have any stride, and stride 0 (an expanded tensor) is legal.
    """
    if shape[-1] > 1 and strides[-1] != 1:
        return False
    return all(
        size == 1 or (0 <= stride * itemsize < STRIDE_LIMIT and stride * itemsize % ALIGNMENT == 0)
        for size, stride in zip(shape[:-1], strides[:-1], strict=True)
    )


def describe(
    shape: Sequence[int], strides: Sequence[int], dtype: str, box: tuple[int, int], itemsize: int = 2
) -> TensorMap:
    """The descriptor of a (batch, seq, heads, d) tensor for boxes of (columns, rows). The layout must be legal."""
    batch, seq, heads, head_dim = shape
    # The stride of a dimension of size 1 is never multiplied by anything but 0, yet the driver checks it.
    seq_stride, head_stride, batch_stride = (ALIGNMENT if shape[i] == 1 else strides[i] * itemsize for i in (1, 2, 0))
    return TensorMap(
        DATA_TYPES[dtype],
        (head_dim, seq, heads, batch),
        (seq_stride, head_stride, batch_stride),
        box,
        _SWIZZLES[box[0]],
    )


@lru_cache(maxsize=8192)
def encode(tensor_map: TensorMap, address: int, device: int) -> bytes:
    """The 128 bytes of a descriptor; LaunchError when the driver refuses it, which is not remembered.

    The driver wants a context for it: a thread that has none yet is given the device's primary one.
    """
    room = (ctypes.c_ubyte * (TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT))()
    start = -(-ctypes.addressof(room) // TENSOR_MAP_ALIGNMENT) * TENSOR_MAP_ALIGNMENT
    cuda = driver()
    ask = partial(
        cuda.cuTensorMapEncodeTiled,
        start,
        tensor_map.data_type,
        4,
        address,
        (ctypes.c_uint64 * 4)(*tensor_map.dims),
        (ctypes.c_uint64 * 3)(*tensor_map.strides),
        (ctypes.c_uint * 4)(*tensor_map.box, 1, 1),
        (ctypes.c_uint * 4)(1, 1, 1, 1),
        _INTERLEAVE_NONE,
        tensor_map.swizzle,
        _L2_PROMOTION_256B,
        _OUT_OF_BOUNDS_ZEROS,
    )
    if (status := ask()) in NO_CONTEXT:
        cuda.set_context(device)
        status = ask()
    cuda.check(status, f"describing {tensor_map} at {address:#x}")
    return ctypes.string_at(start, TENSOR_MAP_BYTES)


def accepted(tensor_map: TensorMap, address: int, device: int) -> bool:
    """Whether the driver takes a descriptor: asked where its manual is silent, which is stride 0."""
    try:
        encode(tensor_map, address, device)
    except LaunchError:
        return False
    return True
