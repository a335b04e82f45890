"""A GPU that is not there: CPU tensors stand in for CUDA's, and a recording driver for libcuda."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from flashgen import calls, counters, launch, loaded, tensormap
from flashgen.generator import KernelPlan, KernelSpec, plan
from flashgen.loaded import LoadedKernel
from tests.pure.fake_driver import FakeCuda

STREAM = 0x77


class Machine:
    """Every test makes its own; ``patch`` undoes it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.cuda = FakeCuda()
        self.capturing = False
        self.stream = STREAM
        self.resolved: list[KernelSpec] = []
        for module in (launch, loaded, tensormap, counters):
            patch.setattr(module, "driver", lambda: self.cuda.driver)
        tensormap.encode.cache_clear()
        patch.setattr(calls, "_current_device", lambda: -1)
        patch.setattr(calls, "_raw_stream", lambda device: self.stream)
        patch.setattr(calls, "_capturing", lambda: self.capturing)
        properties = SimpleNamespace(major=9, minor=0, name="fake", multi_processor_count=132)
        patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        for memo in ("_slots", "_unused"):
            patch.setattr(counters, memo, {})
        patch.setattr(counters, "_thread", counters._Thread())
        self.launcher = calls.Launcher(self.resolve)

    def resolve(self, spec: KernelSpec, *_: int) -> LoadedKernel[KernelPlan]:
        self.resolved.append(spec)
        return LoadedKernel(plan(spec), b"CUBIN")

    def run(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> SimpleNamespace:
        self.launcher(q, k, v, causal, scale, True)
        return self.cuda.launched[-1]


def tensors(
    b: int = 2, sq: int = 300, sk: int = 500, hq: int = 4, hkv: int = 2, d: int = 128, dv: int = 128
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(b, sq, hq, d).half(), torch.zeros(b, sk, hkv, d).half(), torch.zeros(b, sk, hkv, dv).half()
