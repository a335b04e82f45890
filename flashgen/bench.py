"""Speed beside other attention: interleaved repetition by repetition, L2 flushed, medians by CUDA events."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashgen.backward_kernel import BackwardKernel
from flashgen.bench_backward import autograd_runs, borrowed_bytes, kernel_runs
from flashgen.bench_grid import BACKWARD_GRID, GRID, OURS, STEADY, Shape
from flashgen.bench_kernels import identity, own_kernels
from flashgen.bench_timing import HIDING_CYCLES, time_runs
from flashgen.bound import bind
from flashgen.callable_kernel import Kernel
from flashgen.host_time import host_time, need_gpu
from flashgen.loading import AnyKernel
from flashgen.peers import LeftOutError, Run, run_of, usable

__all__ = ["BACKWARD_GRID", "GRID", "Row", "Run", "Shape", "bench", "host_time", "runs_on", "time_runs"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

LeftOut = Callable[[Shape, str, str], None]  # a peer did not run on a shape: its name, and why


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
    disagreement: float  # relative L2 distance from the first implementation's result, or the worst of its gradients
    direction: str = "fwd"  # or bwd
    borrowed_bytes: int | None = None  # GPU memory that a backward takes beside its gradients
    deterministic_cost: float | None = None  # of "flashgen deterministic": its time over flashgen's in the run, less 1
    # Of flashgen's own: which kernel ran, of a backward the backward alone. Others, and CPU tensors, have no code.
    kernel: str | None = None
    plan: dict[str, Any] | None = None  # every choice, as ``plan.request.explicit`` has them
    sha256: str | None = None


def bench(
    shapes: Iterable[Shape] = GRID,
    *,
    kernels: Sequence[AnyKernel] | None = None,
    backends: Sequence[str] | None = None,
    repetitions: int = 20,
    deterministic: bool = False,
    on_done: Callable[[Shape, list[Row]], None] | None = None,
    on_left_out: LeftOut | None = None,
) -> list[Row]:
    """Time flashgen and its peers on each shape. A peer that does not take a shape is left out of it.

    A backward is timed alone and as users call it, by torch.autograd.grad, of flashgen and peers alike.
    ``kernels``: these instead of flashgen's choice, by themselves, each on the shapes of its spec. ``backends``: names
    of ``flashgen.peers.PEERS``; None: those installed that need no naming. ``deterministic``: flashgen's deterministic
    backward too, as an implementation of its own. DeviceError without a GPU.
    """
    need_gpu()
    names = usable()[0] if backends is None else backends
    rows: list[Row] = []
    for shape in shapes:
        own = own_kernels(shape, kernels, deterministic)
        runs = _runs(shape, own, kernels is not None, names, on_left_out)
        some = _rows(shape, runs, own, repetitions)
        rows += some
        if on_done is not None:
            on_done(shape, some)
    return rows


def _runs(
    shape: Shape,
    own: Mapping[str, AnyKernel],
    by_themselves: bool,
    backends: Sequence[str],
    on_left_out: LeftOut | None,
) -> dict[str, Run]:
    q, k, v = _inputs(shape)
    causal = shape.mask == "causal"
    dout = None
    if shape.direction == "bwd":
        dout = torch.randn((*q.shape[:3], v.shape[3]), device=q.device, dtype=q.dtype)
        if by_themselves:
            backwards = {name: kernel for name, kernel in own.items() if isinstance(kernel, BackwardKernel)}
            runs = kernel_runs(backwards, q, k, v, dout, causal=causal)
        else:
            runs = autograd_runs(q, k, v, dout, causal=causal, deterministic=STEADY in own)
    elif by_themselves:
        runs = {name: _kernel_run(kernel, q, k, v) for name, kernel in own.items() if isinstance(kernel, Kernel)}
    else:
        runs = {OURS: bind(q, k, v, causal=causal)}
    return runs | _peer_runs(shape, backends, q, k, v, dout, on_left_out)


def _rows(shape: Shape, runs: Mapping[str, Run], own: Mapping[str, AnyKernel], repetitions: int) -> list[Row]:
    if not runs:
        return []
    backward = shape.direction == "bwd"
    times = time_runs(runs, repetitions, HIDING_CYCLES if backward else 0)
    medians = {name: statistics.median(values) for name, values in times.items()}
    first = [x.float() for x in _results(next(iter(runs.values())))]
    rows = []
    for name, values in times.items():
        median, quartiles = medians[name], statistics.quantiles(values, n=4)
        rows.append(Row(
            shape.name, name, median, quartiles[2] - quartiles[0], shape.flop / median / 1e9,
            medians["cudnn"] / median if "cudnn" in medians else None, shape.bar,
            max(float((x.float() - y).norm() / y.norm()) for x, y in zip(_results(runs[name]), first, strict=True)),
            shape.direction,
            borrowed_bytes(runs[name]) if backward else None,
            median / medians[OURS] - 1 if name == STEADY else None,
            **identity(own.get(name), first[0].is_cuda),
        ))  # fmt: skip
    return rows


def _results(run: Run) -> tuple[Tensor, ...]:
    results = run()
    return results if isinstance(results, tuple) else (results,)


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


def _peer_runs(
    shape: Shape, names: Sequence[str], q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None,
    on_left_out: LeftOut | None,
) -> dict[str, Run]:  # fmt: skip
    runs = {}
    for name in names:
        try:
            runs[name] = run_of(name, q, k, v, causal=shape.mask == "causal", dout=dout)
        except LeftOutError as error:
            if on_left_out is not None:
                on_left_out(shape, name, str(error))
    return runs


def runs_on(shape: Shape, kernels: Mapping[str, AnyKernel], backends: Sequence[str] = ()) -> dict[str, Run]:
    """What ``time_runs`` takes, on inputs of that shape: kernels of its direction, and the peers that take it."""
    return _runs(shape, kernels, True, backends, None)
