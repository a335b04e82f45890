"""A driver that records the launches of a backward."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from flashgen import backward_launch
from flashgen.backward_calls import BackwardLauncher, Operands
from flashgen.generator import BackwardPlan, KernelSpec, plan_backward
from flashgen.loaded import LoadedKernel
from flashgen.params import backward_params
from tests.pure.fake_driver import FakeCuda
from tests.pure.fake_machine import Machine


class FakeBackwardCuda(FakeCuda):
    """Gives every kernel of a cubin a handle of its own: 0x100, 0x101, ... in the order of loading."""

    params = staticmethod(backward_params)
    described = ("q", "k", "v", "dout")

    def on_cuLibraryGetKernel(self, kernel: int, library: int, name: bytes) -> int:
        super().on_cuLibraryGetKernel(kernel, library, name)
        ctypes.c_void_p.from_address(kernel).value = 0xFF + len(self.kernels)
        return 0

    def on_cuKernelGetFunction(self, function: int, kernel: int) -> int:
        ctypes.c_void_p.from_address(function).value = kernel
        return 0


class BackwardMachine(Machine):
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        self.cuda: FakeBackwardCuda = FakeBackwardCuda()
        patch.setattr(backward_launch, "driver", lambda: self.cuda.driver)
        self.backward = BackwardLauncher(self.resolve_backward)

    def resolve_backward(self, spec: KernelSpec, *_: int) -> LoadedKernel[BackwardPlan]:
        self.resolved.append(spec)
        return LoadedKernel(plan_backward(spec), b"CUBIN")

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
