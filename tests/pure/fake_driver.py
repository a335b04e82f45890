"""A CUDA driver in Python: it records what it is asked, so that launches can be tested without a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

from flashgen.driver import (
    _SIGNATURES,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CU_STREAM_CAPTURE_MODE_RELAXED,
    Driver,
    LaunchConfig,
)
from flashgen.params import forward_params


class FakeCuda:
    """``driver`` is a flashgen Driver whose every function is ``self.on_<name>`` or a success."""

    params = staticmethod(forward_params)  # the argument of the kernels it launches
    described = ("q", "k", "v", "out")  # whose descriptors that argument holds

    def __init__(self) -> None:
        self.encoded: list[SimpleNamespace] = []
        self.launched: list[SimpleNamespace] = []
        self.loaded: list[bytes] = []  # machine code
        self.kernels: list[bytes] = []  # names of kernels that were asked for
        self.shared: list[tuple[int, int]] = []  # function, bytes of shared memory it may have
        self.refuse_stride_zero = False
        self.launch_statuses: list[int] = []
        self.encode_statuses: list[int] = []
        self.load_statuses: list[int] = []  # of cuLibraryLoadData, cuLibraryGetKernel and cuKernelGetFunction in turn
        self.contexts: list[int] = []  # pushed and not popped yet
        self.allocated: dict[int, int] = {}  # address -> bytes, of host memory
        self.zeroed: list[tuple[int, int, int]] = []  # address, bytes, stream
        self.mode = 0  # of stream captures
        self.contexts_set = 0
        self._keep: list[Any] = []
        library = SimpleNamespace()
        for name, types in _SIGNATURES.items():
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p if _pointer(t) else t for t in types))
            function = kind(getattr(self, f"on_{name}", lambda *_: 0))
            self._keep.append(function)
            setattr(library, name, ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.cast(function, ctypes.c_void_p).value or 0))
        self.driver = Driver(library)

    def on_cuGetErrorName(self, status: int, text: int) -> int:
        ctypes.c_char_p.from_address(text).value = b"CUDA_ERROR_FAKE"
        return 0

    def on_cuDevicePrimaryCtxRetain(self, context: int, device: int) -> int:
        ctypes.c_void_p.from_address(context).value = 0xC0 + device
        return 0

    def on_cuCtxSetCurrent(self, context: int) -> int:
        self.contexts_set += 1
        return 0

    def on_cuCtxPushCurrent_v2(self, context: int) -> int:
        self.contexts.append(context)
        return 0

    def on_cuCtxPopCurrent_v2(self, context: int) -> int:
        ctypes.c_void_p.from_address(context).value = self.contexts.pop()
        return 0

    def on_cuThreadExchangeStreamCaptureMode(self, mode: int) -> int:
        given = ctypes.c_int.from_address(mode)
        self.mode, given.value = given.value, self.mode
        return 0

    def on_cuMemAlloc_v2(self, address: int, size: int) -> int:
        assert self.contexts
        assert self.mode == CU_STREAM_CAPTURE_MODE_RELAXED
        memory = (ctypes.c_ubyte * size)(*[0xFF] * size)
        self._keep.append(memory)
        ctypes.c_void_p.from_address(address).value = ctypes.addressof(memory)
        self.allocated[ctypes.addressof(memory)] = size
        return 0

    def on_cuMemsetD8Async(self, address: int, value: int, size: int, stream: int | None) -> int:
        assert self.contexts
        ctypes.memset(address, value, size)
        self.zeroed.append((address, size, stream or 0))
        return 0

    def on_cuLibraryLoadData(self, library: int, code: bytes, *rest: Any) -> int:
        if status := self._load_status():
            return status
        self.loaded.append(ctypes.string_at(code) if isinstance(code, int) else code)
        ctypes.c_void_p.from_address(library).value = 0x11
        return 0

    def on_cuLibraryGetKernel(self, kernel: int, library: int, name: bytes) -> int:
        assert library == 0x11
        if status := self._load_status():
            return status
        self.kernels.append(name)
        ctypes.c_void_p.from_address(kernel).value = 0x22
        return 0

    def on_cuKernelGetFunction(self, function: int, kernel: int) -> int:
        assert kernel == 0x22
        if status := self._load_status():
            return status
        ctypes.c_void_p.from_address(function).value = 0x33
        return 0

    def on_cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> int:
        assert attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.shared.append((function, value))
        return 0

    def _load_status(self) -> int:
        return self.load_statuses.pop(0) if self.load_statuses else 0

    def on_cuTensorMapEncodeTiled(
        self, to: int, data_type: int, rank: int, address: int, dims: int, strides: int, box: int, steps: int,
        interleave: int, swizzle: int, promotion: int, fill: int,
    ) -> int:  # fmt: skip
        if self.encode_statuses and (status := self.encode_statuses.pop(0)):
            return status
        record = SimpleNamespace(
            data_type=data_type,
            address=address or 0,
            dims=tuple((ctypes.c_uint64 * 4).from_address(dims)),
            strides=tuple((ctypes.c_uint64 * 3).from_address(strides)),
            box=tuple((ctypes.c_uint * 4).from_address(box)),
            steps=tuple((ctypes.c_uint * 4).from_address(steps)),
            swizzle=swizzle,
        )
        legal = to % 64 == 0 and rank == 4 and record.address % 16 == 0 and min(record.dims) > 0
        legal = legal and all(stride % 16 == 0 for stride in record.strides)
        if not legal or (self.refuse_stride_zero and 0 in record.strides):
            return 1
        self.encoded.append(record)
        mark = len(self.encoded).to_bytes(128, "little")
        ctypes.memmove(to, mark, 128)
        return 0

    def on_cuLaunchKernelEx(self, config: int, function: int, arguments: int, extra: int | None) -> int:
        if self.launch_statuses and (status := self.launch_statuses.pop(0)):
            return status
        assert extra is None
        shape = LaunchConfig.from_address(config)
        kind = self.params()
        copy = kind.from_buffer_copy(kind.from_address((ctypes.c_void_p * 1).from_address(arguments)[0] or 0))
        self.launched.append(
            SimpleNamespace(
                function=function,
                grid=(shape.grid_x, shape.grid_y, shape.grid_z),
                block=(shape.block_x, shape.block_y, shape.block_z),
                shared_memory=shape.shared_memory_bytes,
                stream=shape.stream or 0,
                attributes=shape.attribute_count,
                params=copy,
                maps={n: self.encoded[int.from_bytes(bytes(getattr(copy, n)), "little") - 1] for n in self.described},
            )
        )
        return 0


def _pointer(kind: Any) -> bool:
    return kind is ctypes.c_void_p or hasattr(kind, "contents")
