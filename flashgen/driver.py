"""The few functions of the CUDA driver that a call needs, through ctypes.

``cuda.bindings`` costs 5 to 6 us for each of these calls, ctypes with prepared arguments under 1 us, and they stand on
the path of every attention call. Nothing is loaded before the first call that needs it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from flashgen.errors import DeviceError, LaunchError

CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
CU_STREAM_CAPTURE_MODE_RELAXED = 2
CUDA_ERROR_NOT_INITIALIZED = 3
CUDA_ERROR_INVALID_CONTEXT = 201
NO_CONTEXT = (CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_INVALID_CONTEXT)

_HINTS = {
    200: "the machine code is not meant for this GPU",
    209: "the machine code is not meant for this GPU",
    222: "the driver is older than the compiler of this machine code: update the driver, or build with an older NVRTC",
}


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``: grid in blocks, block in threads, dynamic shared memory in bytes."""

    _fields_ = (
        ("grid_x", c_uint),
        ("grid_y", c_uint),
        ("grid_z", c_uint),
        ("block_x", c_uint),
        ("block_y", c_uint),
        ("block_z", c_uint),
        ("shared_memory_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )

    def set(self, blocks: int, threads: int, shared_memory_bytes: int, stream: int) -> None:
        """A grid and block of one dimension, on that stream (0 = the default one)."""
        self.grid_x, self.grid_y, self.grid_z = blocks, 1, 1
        self.block_x, self.block_y, self.block_z = threads, 1, 1
        self.shared_memory_bytes, self.stream = shared_memory_bytes, stream or None


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSetCurrent": (c_void_p,),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuMemAlloc_v2": (POINTER(c_void_p), c_size_t),
    "cuMemsetD8Async": (c_void_p, c_ubyte, c_size_t, c_void_p),
    "cuLibraryLoadData": (POINTER(c_void_p), c_char_p, c_void_p, c_void_p, c_uint, c_void_p, c_void_p, c_uint),
    "cuLibraryGetKernel": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuKernelGetFunction": (POINTER(c_void_p), c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuTensorMapEncodeTiled": (
        c_void_p, c_int, c_uint, c_void_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint), POINTER(c_uint),
        c_int, c_int, c_int, c_int,
    ),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
}  # fmt: skip


class Driver:
    """libcuda with argument types. Every function of it gives back a CUresult as an int."""

    def __init__(self, library: Any) -> None:
        for name, types in _SIGNATURES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise DeviceError(f"the CUDA driver has no {name}: it is too old; got a libcuda before 12.0") from None
            function.argtypes, function.restype = types, c_int
            setattr(self, name, function)
        self._contexts: dict[int, int] = {}
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # tells mypy that attributes are set by name

    def check(self, status: int, what: str) -> None:
        """Raise LaunchError with the driver's own words unless status is success."""
        if status:
            raise LaunchError(f"{what} failed: {self.describe(status)}")

    def describe(self, status: int) -> str:
        """Name, number and meaning of a CUresult."""
        words = []
        for function in (self.cuGetErrorName, self.cuGetErrorString):
            text = c_char_p()
            if function(status, byref(text)) == 0 and text.value:
                words.append(text.value.decode(errors="replace"))
        said = ": ".join(words) or "an error that the driver does not know"
        return f"{said} ({status})" + (f"; {_HINTS[status]}" if status in _HINTS else "")

    def version(self) -> tuple[int, int]:
        """The newest CUDA version that the driver takes, as (major, minor)."""
        number = c_int()
        self.check(self.cuDriverGetVersion(byref(number)), "cuDriverGetVersion")
        return number.value // 1000, number.value % 1000 // 10

    def context(self, device: int) -> int:
        """The primary context of a device, the one that torch works in. It is retained once and kept."""
        with self._lock:
            if device not in self._contexts:
                ordinal, context = c_int(), c_void_p()
                self.check(self.cuInit(0), "cuInit")
                self.check(self.cuDeviceGet(byref(ordinal), device), f"cuDeviceGet({device})")
                self.check(self.cuDevicePrimaryCtxRetain(byref(context), ordinal.value), "cuDevicePrimaryCtxRetain")
                self._contexts[device] = context.value or 0
            return self._contexts[device]

    def set_context(self, device: int) -> None:
        """Make a device's primary context the calling thread's, which has none."""
        self.check(self.cuCtxSetCurrent(self.context(device)), "cuCtxSetCurrent")

    @contextmanager
    def _inside(self, device: int) -> Iterator[None]:
        """A device's primary context for a while, for what is no part of any capture that may go on around it."""
        mode, popped = c_int(CU_STREAM_CAPTURE_MODE_RELAXED), c_void_p()
        self.check(self.cuCtxPushCurrent_v2(self.context(device)), "cuCtxPushCurrent")
        self.cuThreadExchangeStreamCaptureMode(byref(mode))
        try:
            yield
        finally:
            self.cuThreadExchangeStreamCaptureMode(byref(mode))
            self.cuCtxPopCurrent_v2(byref(popped))

    def allocate(self, size: int, device: int) -> int:
        """Address of so many new bytes on a device. Nothing frees them before the process ends."""
        address = c_void_p()
        with self._inside(device):
            self.check(self.cuMemAlloc_v2(byref(address), size), f"allocating {size} bytes on cuda:{device}")
        return address.value or 0

    def zero(self, address: int, size: int, device: int, stream: int) -> None:
        """Zero so many bytes: work on that stream, or a node of the graph that it captures."""
        with self._inside(device):
            status = self.cuMemsetD8Async(address, 0, size, stream or None)
            self.check(status, f"zeroing {size} bytes on cuda:{device}")

    def load(self, cubin: bytes, kernels: Mapping[str, int], device: int) -> tuple[int, ...]:
        """Load machine code once and give back the CUfunctions of its kernels on a device.

        ``kernels`` has the bytes of dynamic shared memory that each is launched with, by name; the functions come in
        its order. The library stays loaded until the process ends: a launch may still be using it whenever Python lets
        go of it.
        """
        library = c_void_p()
        with self._inside(device):
            status = self.cuLibraryLoadData(byref(library), cubin, None, None, 0, None, None, 0)
            return tuple(self._function(library, name, size, status) for name, size in kernels.items())

    def _function(self, library: c_void_p, name: str, shared_memory_bytes: int, status: int) -> int:
        """One kernel of a library that was loaded with that status."""
        kernel, function = c_void_p(), c_void_p()
        # The driver may look at the code as late as here, or here.
        status = status or self.cuLibraryGetKernel(byref(kernel), library, name.encode())
        status = status or self.cuKernelGetFunction(byref(function), kernel)
        self.check(status, f"loading {name}")
        attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        status = self.cuFuncSetAttribute(function, attribute, shared_memory_bytes)
        self.check(status, f"giving {name} {shared_memory_bytes} bytes of shared memory")
        return function.value or 0


@cache
def driver() -> Driver:
    """The driver of this machine, loaded on first use; DeviceError where there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(
            f"no CUDA driver on this machine ({error}): install the NVIDIA driver; CPU tensors work without one"
        ) from None
    return Driver(library)
