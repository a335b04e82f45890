"""What must not get slower. Run alone on the GPU: ``pytest tests/device/test_speed.py --speed``."""

from __future__ import annotations

import statistics
import time

import pytest
import torch

from flashgen.bench import bench
from flashgen.bench_grid import Shape
from flashgen.generator import KernelPlan
from flashgen.host_time import host_time
from flashgen.kernel import build_kernel
from flashgen.loaded import LoadedKernel
from tests.device.helpers import MASKS, plan_for

LOADED = (40, 64, 72, 96, 128, 192, 256)


def kernels() -> list[KernelPlan]:
    lengths = (128, 8192)
    return [plan_for(dims, "bf16", mask, keys) for dims in LOADED for mask in MASKS for keys in lengths]


@pytest.fixture(autouse=True)
def only_when_asked(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--speed", default=False):
        pytest.skip("measures time: give pytest the path tests/device and --speed")


def test_a_call_costs_the_host_no_more_than_torchs_attention() -> None:
    rows = {row.implementation: row for row in host_time()}
    table = "\n".join(f"{r.implementation}: {r.microseconds:.1f} us, spread {r.spread:.1f}" for r in rows.values())
    print(table)
    assert rows["flashgen.attention"].microseconds <= rows["torch SDPA"].microseconds, table
    assert rows["flashgen.bind"].microseconds <= rows["flashgen.attention"].microseconds, table


def test_a_cached_kernel_is_loaded_in_50_ms() -> None:
    torch.zeros(1, device="cuda")
    taken = []
    for dims in LOADED:
        plan = plan_for(dims, "bf16", "causal", 8192)
        start = time.perf_counter()
        built = build_kernel(plan.spec)
        LoadedKernel(built.plan, built.cubin).functions(0)
        taken.append((time.perf_counter() - start) * 1e3)
        assert built.cached, f"{plan.name} was not in the cache"
    rest = statistics.median(taken[1:])  # the first one also finds the compiler
    print(f"milliseconds: {[round(x, 1) for x in taken]}")
    assert rest <= 50, f"{rest:.1f} ms, of {[round(x, 1) for x in taken]}"


@pytest.mark.parametrize(("mask", "least"), [("full", 0.95), ("causal", 0.95)])
def test_head_dim_128_at_8k_keeps_up_with_cudnn(mask: str, least: float) -> None:
    rows = {row.implementation: row for row in bench([Shape(mask, 128, 2, 16, 16, 8192, 8192)], backends=("cudnn",))}
    table = "\n".join(f"{r.implementation}: {r.milliseconds:.3f} ms, {r.tflops:.0f} TFLOP/s" for r in rows.values())
    print(table)
    ratio = rows["flashgen"].over_cudnn
    assert ratio is not None, "cuDNN does not run here"
    assert ratio >= least, f"{ratio:.3f} of cuDNN's speed, least {least}\n{table}"
