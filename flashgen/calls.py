"""From CUDA tensors to a launch at the smallest cost: one look-up of the call, one of its addresses, one driver call.

A call is known by its shapes, strides, dtypes, device, mask and scale; its checks, kernel and geometry are done once.
A launch is known by its call, addresses and stream; its descriptors and arguments are packed once. The caching
allocator hands out few addresses in a loop, so both are nearly always found. Both memos are bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgen.counters import PER_THREAD_STREAM, captured_counter, counter_address
from flashgen.generator import KernelPlan, KernelSpec
from flashgen.launch import Call, Launch, Layout, make_call, refused
from flashgen.launchers import Launchers
from flashgen.loaded import LoadedKernel
from flashgen.memo import make_room
from flashgen.outputs import dense_copy, fill_empty, follows_q, new_lse, new_out
from flashgen.select import arch_of, check_scale, check_tensors, select
from flashgen.tensormap import ALIGNMENT, legal_layout

Addresses = tuple[int, int, int, int, int]  # of q, k, v, out and lse (0: none)

MAX_CALLS = 1024
MAX_LAUNCHES = 8192
launchers = Launchers()

# Absent in a torch without CUDA, where no CUDA tensor can reach this file.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", None)  # type: ignore[assignment]
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # type: ignore[assignment]
_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)  # type: ignore[assignment]


@dataclass(frozen=True)
class Detour:
    """A call that is not launched as it is: nothing to compute, or operands (0 q, 1 k, 2 v) to be copied first."""

    empty: bool
    copies: tuple[int, ...] = ()


class Launcher:
    """Runs attention on CUDA tensors with the kernels that ``resolve`` gives. Safe to use from several threads.

    ``resolve`` is asked once for each kind of call, with its spec and number of keys, and may compile.
    """

    def __init__(self, resolve: Callable[[KernelSpec, int], LoadedKernel[KernelPlan]]) -> None:
        self._resolve = resolve
        self._calls: dict[Any, Call | Detour] = {}
        self._launches: dict[Any, Launch] = {}
        self._lock = threading.Lock()
        launchers.add(self)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float | None, with_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """New tensors (out, lse), lse None unless wanted."""
        device = q.get_device()
        if _current_device() != device:
            check_tensors(q, k, v)  # q alone may be on the CPU, where there is no device to switch to
            with torch.cuda.device(device):
                return self(q, k, v, causal, softmax_scale, with_lse)
        call = self._calls.get(
            (q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
             device, k.get_device(), v.get_device(), causal, softmax_scale)
        )  # fmt: skip
        if call is None:
            call = self._new_call(q, k, v, None, causal, softmax_scale)
        if call.__class__ is Detour:
            out, lse = new_out(q, v.shape[3]), new_lse(q) if with_lse else None
            self.into(q, k, v, out, lse, causal, softmax_scale)
            return out, lse
        out = torch.empty_like(q) if call.like_q else q.new_empty_strided(*call.out)  # type: ignore[union-attr]
        lse = new_lse(q) if with_lse else None
        self._run(call, q, k, v, out, lse, causal, softmax_scale)  # type: ignore[arg-type]
        return out, lse

    def into(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, causal: bool,
        softmax_scale: float | None,
    ) -> None:  # fmt: skip
        """Write the results into tensors that the caller gives, whose layouts a descriptor must be able to hold."""
        device = q.get_device()
        if _current_device() != device:
            check_tensors(q, k, v)
            with torch.cuda.device(device):
                return self.into(q, k, v, out, lse, causal, softmax_scale)
        call = self.call_for(q, k, v, out, causal, softmax_scale)
        if isinstance(call, Call):
            return self._run(call, q, k, v, out, lse, causal, softmax_scale)
        if call.empty:
            return fill_empty(out, lse)
        q, k, v = (dense_copy(x) if i in call.copies else x for i, x in enumerate((q, k, v)))
        return self.into(q, k, v, out, lse, causal, softmax_scale)

    def call_for(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, causal: bool, softmax_scale: float | None
    ) -> Call | Detour:
        """What is known of a call that writes into ``out``; q's device must be the current one."""
        call = self._calls.get(_key(q, k, v, out, causal, softmax_scale))
        return self._new_call(q, k, v, out, causal, softmax_scale) if call is None else call

    def launch_for(self, call: Call, addresses: Addresses) -> Launch | None:
        """The packed launch on the current stream, or None where q, k or v lies where no descriptor can point.

        Under capture it is to be run once, now: the graph zeroes its counter here.
        """
        stream = _raw_stream(call.device)
        if call.counts_tiles and _capturing():
            if _misaligned(addresses):
                return None
            return call.pack(*addresses, captured_counter(call.device, stream), stream)
        launch = self._launches.get((call, addresses, stream))
        if launch is None and not _misaligned(addresses):
            counter = counter_address(call.device, stream) if call.counts_tiles else 0
            launch = call.pack(*addresses, counter, stream)
            if stream != PER_THREAD_STREAM:  # one handle, but a stream and a counter for every thread: not to be shared
                with self._lock:
                    make_room(self._launches, MAX_LAUNCHES)
                    self._launches[call, addresses, stream] = launch
        return launch

    def _run(
        self, call: Call, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, causal: bool,
        softmax_scale: float | None,
    ) -> None:  # fmt: skip
        addresses = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), 0 if lse is None else lse.data_ptr()
        launch = self._launches.get((call, addresses, _raw_stream(call.device)))
        if launch is None or (call.counts_tiles and _capturing()):
            launch = self.launch_for(call, addresses)
        if launch is None:
            q, k, v = (dense_copy(x) if x.data_ptr() % ALIGNMENT else x for x in (q, k, v))
            return self.into(q, k, v, out, lse, causal, softmax_scale)
        return call.failed(status, launch) if (status := launch.run()) else None

    def _new_call(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, causal: bool, softmax_scale: float | None
    ) -> Call | Detour:
        generation = launchers.generation
        call = self._checked_call(q, k, v, out, causal, softmax_scale)
        with self._lock:
            if generation == launchers.generation:  # else its kernel may not be the preferred one any more
                make_room(self._calls, MAX_CALLS)
                self._calls[_key(q, k, v, out, causal, softmax_scale)] = call
        return call

    def _checked_call(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, causal: bool, softmax_scale: float | None
    ) -> Call | Detour:
        device = q.get_device()
        properties = torch.cuda.get_device_properties(device)
        arch = arch_of((properties.major, properties.minor), properties.name)
        spec = select(q, k, v, causal=causal, arch=arch)
        scale = check_scale(softmax_scale, q.shape[3])
        if q.numel() == 0 or k.numel() == 0:
            return Detour(empty=True)
        copies = tuple(i for i, x in enumerate((q, k, v)) if not legal_layout(x.shape, x.stride(), x.element_size()))
        if copies:
            return Detour(False, copies)
        like_q = out is None and follows_q(q, v.shape[3])
        room = new_out(q, v.shape[3]) if out is None else out
        layouts = [Layout(tuple(x.shape), x.stride()) for x in (q, k, v, room)]
        call = make_call(
            self._resolve(spec, k.shape[1]), device, properties.multi_processor_count, layouts, like_q, scale
        )
        copies = refused(call, (q.data_ptr(), k.data_ptr(), v.data_ptr()))
        return Detour(False, copies) if copies else call


def forget_calls() -> None:
    """Make every launcher ask for its kernels again: other kernels are to be preferred from now on."""
    launchers.forget()


def _key(q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, causal: bool, softmax_scale: float | None) -> Any:
    key = (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        q.get_device(), k.get_device(), v.get_device(), causal, softmax_scale,
    )  # fmt: skip
    return key if out is None else (*key, out.stride())


def addresses_of(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None) -> Addresses:
    """What a launch needs of the tensors, beside their call."""
    return q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), 0 if lse is None else lse.data_ptr()


def _misaligned(addresses: Addresses) -> bool:
    return (addresses[0] | addresses[1] | addresses[2]) % ALIGNMENT != 0
