"""From CUDA tensors to the launch of a backward: checks, kernel and geometry once for each kind of call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashgen import calls
from flashgen.backward_launch import (
    DESCRIBED,
    Addresses,
    BackwardCall,
    make_backward_call,
    refused_maps,
)
from flashgen.backward_select import check_backward, select_backward
from flashgen.counters import PER_THREAD_STREAM
from flashgen.generator import BackwardPlan, KernelSpec
from flashgen.launch import Launch, Layout
from flashgen.loaded import LoadedKernel
from flashgen.memo import make_room
from flashgen.outputs import dense_copy, new_gradients
from flashgen.select import arch_of, check_scale, check_tensors
from flashgen.tensormap import ALIGNMENT, legal_layout

Gradients = tuple[Tensor, Tensor, Tensor]  # dq, dk, dv
READ = ("dout", "q", "k", "v", "out")  # in rows of 16 bytes: copied where they do not lie so


class Operands(NamedTuple):
    """What a backward reads."""

    dout: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    dlse: Tensor | None


@dataclass(frozen=True)
class Detour:
    """A call that is not launched as it is: nothing to compute, or operands to be copied first."""

    empty: bool
    copies: tuple[str, ...] = ()


class BackwardLauncher:
    """Runs the backward on CUDA tensors with the kernels that ``resolve`` gives. Safe to use from several threads.

    ``resolve`` is asked once for each kind of call, with its spec and number of keys, and may compile.
    """

    def __init__(self, resolve: Callable[[KernelSpec, int], LoadedKernel[BackwardPlan]]) -> None:
        self._resolve = resolve
        self._calls: dict[Any, BackwardCall | Detour] = {}
        self._launches: dict[Any, Launch] = {}
        self._lock = threading.Lock()
        calls.launchers.add(self)

    def __call__(self, given: Operands, softmax_scale: float | None, causal: bool, deterministic: bool) -> Gradients:
        """New tensors (dq, dk, dv)."""
        check_tensors(given.q, given.k, given.v)
        gradients = new_gradients(given.q, given.k, given.v)
        self.into(given, gradients, softmax_scale, causal, deterministic)
        return gradients

    def into(
        self, given: Operands, to: Gradients, softmax_scale: float | None, causal: bool, deterministic: bool
    ) -> None:
        """Write the gradients into tensors that the caller gives, whose layouts must be legal (check_gradients)."""
        device = given.q.get_device()
        if calls._current_device() != device:
            check_tensors(given.q, given.k, given.v)  # q alone may be on the CPU, where there is no device to switch to
            with torch.cuda.device(device):
                return self.into(given, to, softmax_scale, causal, deterministic)
        key = (
            *((x.shape, x.stride(), x.dtype, x.get_device()) for x in (*given, *to) if x is not None),
            given.dlse is None, softmax_scale, causal, deterministic,
        )  # fmt: skip
        call = self._calls.get(key)
        if call is None:
            generation = calls.launchers.generation
            call = self._checked_call(given, to, softmax_scale, causal, deterministic)
            with self._lock:
                if generation == calls.launchers.generation:  # else its kernel may not be the preferred one any more
                    make_room(self._calls, calls.MAX_CALLS)
                    self._calls[key] = call
        if isinstance(call, Detour):
            if call.empty:
                for gradient in to:
                    gradient.zero_()
                return None
            given = given._replace(**{name: dense_copy(getattr(given, name)) for name in call.copies})
            return self.into(given, to, softmax_scale, causal, deterministic)
        copies = {name: dense_copy(x) for name in READ if (x := getattr(given, name)).data_ptr() % ALIGNMENT}
        if copies:  # another call: a copy is contiguous
            return self.into(given._replace(**copies), to, softmax_scale, causal, deterministic)
        # Back to the allocator on return: whoever gets it next on this stream writes after these kernels have read.
        workspace = given.q.new_empty(call.workspace_bytes, dtype=torch.uint8)
        at = Addresses(*(0 if x is None else x.data_ptr() for x in (*given, *to, workspace)))
        launch = self._launch_for(call, at)
        return call.failed(status, launch) if (status := launch.run()) else None

    def _launch_for(self, call: BackwardCall, at: Addresses) -> Launch:
        stream = calls._raw_stream(call.device)
        launch = self._launches.get((call, at, stream))
        if launch is None:
            launch = call.pack(at, stream)
            if stream != PER_THREAD_STREAM:
                with self._lock:
                    make_room(self._launches, calls.MAX_LAUNCHES)
                    self._launches[call, at, stream] = launch
        return launch

    def _checked_call(
        self, given: Operands, to: Gradients, softmax_scale: float | None, causal: bool, deterministic: bool
    ) -> BackwardCall | Detour:
        check_backward(*given)
        q, k, v = given.q, given.k, given.v
        device = q.get_device()
        properties = torch.cuda.get_device_properties(device)
        arch = arch_of((properties.major, properties.minor), properties.name)
        spec = select_backward(q, k, v, causal=causal, deterministic=deterministic, arch=arch)
        scale = check_scale(softmax_scale, q.shape[3])
        if q.numel() == 0 or k.numel() == 0:
            return Detour(empty=True)
        read = {name: getattr(given, name) for name in READ}
        copies = [name for name, x in read.items() if not legal_layout(x.shape, x.stride(), x.element_size())]
        copies += [
            name for name in ("lse", "dlse") if (x := getattr(given, name)) is not None and not x.is_contiguous()
        ]
        if copies:
            return Detour(False, tuple(copies))
        layouts = {
            name: Layout(tuple(x.shape), x.stride())
            for name, x in (read | dict(zip(("dq", "dk", "dv"), to, strict=True))).items()
        }
        call = make_backward_call(
            self._resolve(spec, k.shape[1]), device, properties.multi_processor_count, layouts, scale
        )
        refused = refused_maps(call, {name: read[name].data_ptr() for name in DESCRIBED})
        return Detour(False, refused) if refused else call
