"""What a call costs the host: flashgen and torch, interleaved in one process, without waiting for the GPU."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashgen.bound import bind
from flashgen.errors import DeviceError
from flashgen.ops import attention

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
WARM_UP = 3  # batches


@dataclass(frozen=True)
class HostRow:
    """Microseconds of one call: the median over batches, and the range of the middle half of them."""

    implementation: str
    microseconds: float
    spread: float


def need_gpu() -> None:
    """DeviceError unless torch sees a GPU."""
    if not torch.cuda.is_available():
        raise DeviceError("no CUDA device is available here: timing needs the GPU that the kernels are for")


def host_time(*, batches: int = 40, calls: int = 100) -> list[HostRow]:
    """Time ``calls`` calls at once on a small shape, whose kernels are over before the host asks for the next."""
    need_gpu()
    q, k, v = (torch.randn(1, 128, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))

    def sdpa() -> Tensor:
        return F.scaled_dot_product_attention(qt, kt, vt, is_causal=True)

    runs: dict[str, Callable[[], object]] = {
        "flashgen.attention": lambda: attention(q, k, v, causal=True),
        "flashgen.attention, return_lse": lambda: attention(q, k, v, causal=True, return_lse=True),
        "flashgen.bind": bind(q, k, v, causal=True),
        "flashgen.attention, replay of a CUDA graph": _replay(lambda: attention(q, k, v, causal=True)),
        "torch SDPA": sdpa,
    }
    batch_of = {name: (lambda run=run: _microseconds(run, calls)) for name, run in runs.items()}
    for name, backend in BACKENDS.items():
        if _takes(backend, sdpa):
            batch_of[f"torch SDPA, {name}"] = lambda backend=backend: _with_backend(backend, sdpa, calls)
    taken: dict[str, list[float]] = {name: [] for name in batch_of}
    for _ in range(WARM_UP + batches):
        for name, batch in batch_of.items():
            taken[name].append(batch())
    return [_row(name, values[WARM_UP:]) for name, values in taken.items()]


def _replay(run: Callable[[], object]) -> Callable[[], object]:
    """The replay of a graph that holds one call."""
    run()  # what is compiled and packed on a first call cannot be captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _row(name: str, values: list[float]) -> HostRow:
    quartiles = statistics.quantiles(values, n=4)
    return HostRow(name, statistics.median(values), quartiles[2] - quartiles[0])


def _takes(backend: SDPBackend, run: Callable[[], object]) -> bool:
    try:
        with warnings.catch_warnings(), sdpa_kernel(backend):
            warnings.simplefilter("ignore")  # torch warns why a backend refuses, and then raises
            run()
    except RuntimeError:
        return False
    return True


def _with_backend(backend: SDPBackend, run: Callable[[], object], calls: int) -> float:
    with sdpa_kernel(backend):
        return _microseconds(run, calls)


def _microseconds(run: Callable[[], object], calls: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls * 1e6
