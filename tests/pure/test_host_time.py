"""The host's side of a call, on CPU tensors: which calls are timed, and how a graph is replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

from flashgen import host_time as module
from flashgen.errors import DeviceError
from flashgen.host_time import host_time


class Graph:
    """A graph that counts: what ran before it was captured, while it was, and how often it was replayed."""

    captures: ClassVar[list[Graph]] = []

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


@contextlib.contextmanager
def capture(graph: Graph) -> Iterator[None]:
    Graph.captures.append(graph)
    yield


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    randn = torch.randn
    Graph.captures.clear()
    monkeypatch.setattr(module, "need_gpu", lambda: None)
    monkeypatch.setattr(torch, "randn", lambda *size, device, dtype: randn(*size).to(dtype))
    fakes: dict[str, Any] = {"synchronize": lambda: None, "CUDAGraph": Graph, "graph": capture}
    for name, value in fakes.items():
        monkeypatch.setattr(torch.cuda, name, value)


def test_calls_are_timed_beside_torchs(no_gpu: None) -> None:
    rows = host_time(batches=2, calls=3)
    names = [row.implementation for row in rows]
    assert names[:5] == [
        "flashgen.attention", "flashgen.attention, return_lse", "flashgen.bind",
        "flashgen.attention, replay of a CUDA graph", "torch SDPA",
    ]  # fmt: skip
    assert all(row.microseconds > 0 for row in rows)
    (graph,) = Graph.captures
    assert graph.replays == 3 * (module.WARM_UP + 2)


def test_a_graph_is_captured_after_a_first_call(no_gpu: None) -> None:
    order: list[int] = []
    replay = module._replay(lambda: order.append(len(Graph.captures)))
    assert order == [0, 1], "what a first call compiles and packs cannot be captured"
    replay()
    assert len(order) == 2


def test_without_a_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="no CUDA device"):
        host_time()
