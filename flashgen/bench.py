"""Speed beside torch's own attention: interleaved repetition by repetition, L2 flushed, medians by CUDA events."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from flashgen.bench_grid import GRID, Shape
from flashgen.bound import bind
from flashgen.callable_kernel import Kernel
from flashgen.host_time import BACKENDS, host_time, need_gpu

__all__ = ["GRID", "Row", "Shape", "bench", "host_time"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FLUSH_BYTES = 256 << 20  # five times the L2
WARM_UP = 3

Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Row:
    """One implementation on one shape."""

    shape: str
    implementation: str
    milliseconds: float  # median
    spread: float  # milliseconds between the quartiles
    tflops: float
    over_cudnn: float | None  # speed as a multiple of cuDNN's in the same run; None where cuDNN does not run
    bar: float | None  # the best peer's such multiple, measured once
    disagreement: float  # relative L2 distance from the first implementation's result


def bench(
    shapes: Iterable[Shape] = GRID,
    *,
    kernels: Sequence[Kernel] | None = None,
    backends: Sequence[str] = tuple(BACKENDS),
    repetitions: int = 20,
    on_done: Callable[[Shape, list[Row]], None] | None = None,
) -> list[Row]:
    """Time flashgen and torch's backends on each shape. A backend that does not take a shape is left out of it.

    ``kernels``: these instead of flashgen's choice, each on the shapes of its spec. DeviceError without a GPU.
    """
    need_gpu()
    rows: list[Row] = []
    for shape in shapes:
        some = _bench_shape(shape, kernels, backends, repetitions)
        rows += some
        if on_done is not None:
            on_done(shape, some)
    return rows


def _bench_shape(
    shape: Shape, kernels: Sequence[Kernel] | None, backends: Sequence[str], repetitions: int
) -> list[Row]:
    q, k, v = _inputs(shape)
    runs: dict[str, Run] = {}
    if kernels is None:
        runs["flashgen"] = bind(q, k, v, causal=shape.mask == "causal")  # type: ignore[assignment]
    for kernel in kernels or ():
        spec = kernel.spec
        if (spec.head_dim_qk, spec.head_dim_v, spec.mask, spec.dtype) == (
            shape.head_dim, shape.d_v, shape.mask, shape.dtype
        ):  # fmt: skip
            plan = kernel.plan
            label = f"{plan.block_m}x{plan.block_n}x{plan.stages} {plan.scheduler} {plan.rescale} {plan.epilogue}"
            runs[label] = _kernel_run(kernel, q, k, v)
    for name in backends:
        run = _sdpa_run(shape, name, q, k, v)
        if run is not None:
            runs[name] = run
    if not runs:
        return []
    times = time_runs(runs, repetitions)
    first = next(iter(runs.values()))().float()
    cudnn = statistics.median(times["cudnn"]) if "cudnn" in times else None
    rows = []
    for name, values in times.items():
        median = statistics.median(values)
        quartiles = statistics.quantiles(values, n=4)
        away = float((runs[name]().float() - first).norm() / first.norm())
        rows.append(Row(
            shape.name, name, median, quartiles[2] - quartiles[0], shape.flop / median / 1e9,
            None if cudnn is None else cudnn / median, shape.bar, away,
        ))  # fmt: skip
    return rows


def _inputs(shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    def make(seqlen: int, heads: int, head_dim: int) -> Tensor:
        return torch.randn(shape.batch, seqlen, heads, head_dim, device="cuda", dtype=DTYPES[shape.dtype])

    return (
        make(shape.seqlen_q, shape.heads_q, shape.head_dim),
        make(shape.seqlen_k, shape.heads_kv, shape.head_dim),
        make(shape.seqlen_k, shape.heads_kv, shape.d_v),
    )


def _kernel_run(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Run:
    out = q.new_empty((*q.shape[:3], v.shape[3]))

    def run() -> Tensor:
        kernel.into(q, k, v, out)
        return out

    return run


def _sdpa_run(shape: Shape, name: str, q: Tensor, k: Tensor, v: Tensor) -> Run | None:
    """torch's attention by one backend, or None when the backend does not take the shape."""
    if shape.mask == "causal" and shape.seqlen_q != shape.seqlen_k:
        return None  # torch aligns its causal mask to the top left
    qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))
    keywords: dict[str, Any] = {"is_causal": shape.mask == "causal"}
    if shape.heads_q != shape.heads_kv:
        keywords["enable_gqa"] = True

    def run() -> Tensor:
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(qt, kt, vt, **keywords).transpose(1, 2)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns why a backend refuses, and then raises
            run()
    except RuntimeError:
        return None
    return run


def runs_on(shape: Shape, kernels: Mapping[str, Kernel], backends: Sequence[str] = ()) -> dict[str, Run]:
    """What ``time_runs`` takes, on inputs of that shape: the kernels, and those of torch's backends that take it."""
    q, k, v = _inputs(shape)
    runs = {name: _kernel_run(kernel, q, k, v) for name, kernel in kernels.items()}
    for name in backends:
        run = _sdpa_run(shape, name, q, k, v)
        if run is not None:
            runs[name] = run
    return runs


def time_runs(runs: Mapping[str, Run], repetitions: int) -> dict[str, list[float]]:
    """Milliseconds of each repetition. The flush keeps the GPU busy while the host queues what is timed."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in runs}
    for _ in range(WARM_UP + repetitions):
        for name, run in runs.items():
            flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [a.elapsed_time(b) for a, b in pairs[WARM_UP:]] for name, pairs in events.items()}
