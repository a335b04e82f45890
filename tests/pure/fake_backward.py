"""A driver that records the launches of a backward."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from flashgen import backward_launch
from flashgen.backward_calls import BackwardLauncher, Operands
from flashgen.backward_launch import LoadedBackward
from flashgen.driver import LaunchConfig
from flashgen.generator import BackwardPlan, KernelSpec, plan_backward
from flashgen.params import backward_params
from tests.pure.fake_driver import FakeCuda
from tests.pure.fake_machine import Machine


class FakeBackwardCuda(FakeCuda):
    """Gives every kernel of a cubin a handle of its own: 0x100, 0x101, ... in the order of loading."""

    def on_cuLibraryGetKernel(self, kernel: int, library: int, name: bytes) -> int:
        super().on_cuLibraryGetKernel(kernel, library, name)
        ctypes.c_void_p.from_address(kernel).value = 0xFF + len(self.kernels)
        return 0

    def on_cuKernelGetFunction(self, function: int, kernel: int) -> int:
        ctypes.c_void_p.from_address(function).value = kernel
        return 0

    def on_cuLaunchKernelEx(self, config: int, function: int, arguments: int, extra: int | None) -> int:
        if self.launch_statuses and (status := self.launch_statuses.pop(0)):
            return status
        assert extra is None
        shape = LaunchConfig.from_address(config)
        kind = backward_params()
        copy = kind.from_buffer_copy(kind.from_address((ctypes.c_void_p * 1).from_address(arguments)[0] or 0))
        names = ("q", "k", "v", "dout")
        self.launched.append(
            SimpleNamespace(
                function=function,
                grid=(shape.grid_x, shape.grid_y, shape.grid_z),
                block=(shape.block_x, shape.block_y, shape.block_z),
                shared_memory=shape.shared_memory_bytes,
                stream=shape.stream or 0,
                params=copy,
                maps={n: self.encoded[int.from_bytes(bytes(getattr(copy, n)), "little") - 1] for n in names},
            )
        )
        return 0


class BackwardMachine(Machine):
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        self.cuda: FakeBackwardCuda = FakeBackwardCuda()
        patch.setattr(backward_launch, "driver", lambda: self.cuda.driver)
        self.backward = BackwardLauncher(self.resolve_backward)

    def resolve_backward(self, spec: KernelSpec, *_: int) -> LoadedBackward:
        self.resolved.append(spec)
        return LoadedBackward(plan_backward(spec), b"CUBIN")

    @property
    def plan(self) -> BackwardPlan:
        return plan_backward(self.resolved[-1])

    def run_backward(
        self, given: Operands, scale: float | None = None, causal: bool = False, deterministic: bool = False
    ) -> list[SimpleNamespace]:
        """What was launched."""
        before = len(self.cuda.launched)
        self.backward(given, scale, causal, deterministic)
        return self.cuda.launched[before:]


def operands(
    b: int = 2, sq: int = 300, sk: int = 500, hq: int = 4, hkv: int = 2, d: int = 128, dv: int = 64, dlse: bool = False
) -> Operands:
    q, k, v = (torch.zeros(shape).half() for shape in ((b, sq, hq, d), (b, sk, hkv, d), (b, sk, hkv, dv)))
    out: Tensor = torch.zeros(b, sq, hq, dv).half()
    lse = torch.zeros(b, hq, sq)
    return Operands(torch.zeros_like(out), q, k, v, out, lse, torch.zeros_like(lse) if dlse else None)
