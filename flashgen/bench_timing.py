"""How runs are timed: in turn, repetition by repetition, with the L2 flushed before each, by CUDA events."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import torch

from flashgen.host_time import need_gpu

FLUSH_BYTES = 256 << 20  # five times the L2
WARM_UP = 3
PRODUCT_SIZE = 8192  # rows and columns of the matrices whose product is the ceiling
HIDING_CYCLES = 400_000  # of the GPU's clock, about 0.2 ms: longer than autograd takes to queue a backward


def time_runs(
    runs: Mapping[str, Callable[[], object]], repetitions: int, sleep_cycles: int = 0
) -> dict[str, list[float]]:
    """Milliseconds of each repetition. The flush keeps the GPU busy while the host queues what is timed.

    Where the host takes longer than that, ``sleep_cycles`` of the GPU's clock follow the flush.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in runs}
    for _ in range(WARM_UP + repetitions):
        for name, run in runs.items():
            flush.zero_()
            if sleep_cycles:
                torch.cuda._sleep(sleep_cycles)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [a.elapsed_time(b) for a, b in pairs[WARM_UP:]] for name, pairs in events.items()}


def matrix_product_tflops(repetitions: int = 20) -> float:
    """What a plain matrix product reaches here: the median over random bf16 matrices, timed as attention is."""
    need_gpu()
    a, b, out = (
        torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )  # fmt: skip
    times = time_runs({"product": lambda: torch.mm(a, b, out=out)}, repetitions)["product"]
    return 2 * PRODUCT_SIZE**3 / statistics.median(times) / 1e9
