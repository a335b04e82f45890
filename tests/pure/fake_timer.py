"""A GPU that times in no time: tensors lie on the CPU, every run takes another time, memory is what a test says."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from flashgen import bench, bench_timing, host_time
from flashgen.bench_grid import Shape


class Event:
    """The n-th event comes n * n milliseconds after the first, so that no two runs take the same time."""

    recorded: ClassVar[int] = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = -1

    def record(self) -> None:
        self.at = Event.recorded**2
        Event.recorded += 1

    def elapsed_time(self, end: Event) -> float:
        assert self.at >= 0
        return float(end.at - self.at)


class Timer:
    """``slept``: cycles of each sleep. ``memory``: bytes of what is allocated, and at the peak of a run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.slept: list[int] = []
        self.memory = (1000, 1000)
        empty = torch.empty
        Event.recorded = 0
        cuda: dict[str, Any] = {
            "Event": Event, "_sleep": self.slept.append, "synchronize": lambda: None,
            "reset_peak_memory_stats": lambda: None, "memory_allocated": lambda: self.memory[0],
            "max_memory_allocated": lambda: self.memory[1],
        }  # fmt: skip
        for name, value in cuda.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "empty", lambda *size, device=None, **rest: empty(*size, **rest))
        patch.setattr(bench_timing, "FLUSH_BYTES", 16)
        patch.setattr(bench, "need_gpu", lambda: None)
        patch.setattr(bench, "_inputs", inputs)
        patch.setitem(host_time.BACKENDS, "cudnn", SDPBackend.MATH)  # the one that CPU tensors have


def inputs(shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Small numbers of one seed, on the CPU."""
    torch.manual_seed(0)
    sizes = (
        (shape.seqlen_q, shape.heads_q, shape.head_dim),
        (shape.seqlen_k, shape.heads_kv, shape.head_dim),
        (shape.seqlen_k, shape.heads_kv, shape.d_v),
    )
    q, k, v = (torch.randn(shape.batch, *size).to(bench.DTYPES[shape.dtype]) for size in sizes)
    return q, k, v
