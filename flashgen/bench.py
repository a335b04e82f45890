"""Speed beside other attention: interleaved repetition by repetition, L2 flushed, medians by CUDA events."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashgen.bench_grid import GRID, Shape
from flashgen.bound import bind
from flashgen.callable_kernel import Kernel
from flashgen.driver import driver
from flashgen.host_time import host_time, need_gpu
from flashgen.peers import LeftOutError, Run, run_of, usable
from flashgen.toolchain import nvrtc_version

__all__ = ["GRID", "Row", "Run", "Shape", "bench", "document", "host_time", "matrix_product_tflops"]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FLUSH_BYTES = 256 << 20  # five times the L2
WARM_UP = 3
PRODUCT_SIZE = 8192  # rows and columns of the matrices whose product is the ceiling
DRIVER_FILE = Path("/proc/driver/nvidia/version")

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
    disagreement: float  # relative L2 distance from the first implementation's result


def bench(
    shapes: Iterable[Shape] = GRID,
    *,
    kernels: Sequence[Kernel] | None = None,
    backends: Sequence[str] | None = None,
    repetitions: int = 20,
    on_done: Callable[[Shape, list[Row]], None] | None = None,
    on_left_out: LeftOut | None = None,
) -> list[Row]:
    """Time flashgen and its peers on each shape. A peer that does not take a shape is left out of it.

    ``kernels``: these instead of flashgen's choice, each on the shapes of its spec. ``backends``: names of
    ``flashgen.peers.PEERS``; None: those installed that need no naming. DeviceError without a GPU.
    """
    need_gpu()
    names = usable()[0] if backends is None else backends
    rows: list[Row] = []
    for shape in shapes:
        some = _bench_shape(shape, kernels, names, repetitions, on_left_out)
        rows += some
        if on_done is not None:
            on_done(shape, some)
    return rows


def matrix_product_tflops(repetitions: int = 20) -> float:
    """What a plain matrix product reaches here: the median over random bf16 matrices, timed as attention is."""
    need_gpu()
    a, b, out = (
        torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )  # fmt: skip
    times = time_runs({"product": lambda: torch.mm(a, b, out=out)}, repetitions)["product"]
    return 2 * PRODUCT_SIZE**3 / statistics.median(times) / 1e9


def document(rows: Iterable[Row], product_tflops: float, repetitions: int) -> dict[str, Any]:
    """One run, with what it ran on, as JSON takes it."""
    cudnn = torch.backends.cudnn.version()  # 91900: 9.19.0
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _driver_version(),
        "torch": torch.__version__,
        "cudnn": None if cudnn is None else f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}",
        "nvrtc": nvrtc_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "matrix_product_tflops": product_tflops,
        "repetitions": repetitions,
        "rows": [asdict(row) for row in rows],
    }


def _driver_version() -> str:
    try:
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found else "takes CUDA {}.{}".format(*driver().version())


def _bench_shape(
    shape: Shape,
    kernels: Sequence[Kernel] | None,
    backends: Sequence[str],
    repetitions: int,
    on_left_out: LeftOut | None,
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
    runs |= _peer_runs(shape, backends, q, k, v, on_left_out)
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


def _peer_runs(
    shape: Shape, names: Sequence[str], q: Tensor, k: Tensor, v: Tensor, on_left_out: LeftOut | None = None
) -> dict[str, Run]:
    runs = {}
    for name in names:
        try:
            runs[name] = run_of(name, q, k, v, causal=shape.mask == "causal")
        except LeftOutError as error:
            if on_left_out is not None:
                on_left_out(shape, name, str(error))
    return runs


def runs_on(shape: Shape, kernels: Mapping[str, Kernel], backends: Sequence[str] = ()) -> dict[str, Run]:
    """What ``time_runs`` takes, on inputs of that shape: the kernels, and those of the peers that take it."""
    q, k, v = _inputs(shape)
    runs = {name: _kernel_run(kernel, q, k, v) for name, kernel in kernels.items()}
    return runs | _peer_runs(shape, backends, q, k, v)


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
