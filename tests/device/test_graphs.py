"""CUDA graphs: captured on any path, warm or cold, replayed with new numbers in the same memory, several at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import flashgen
from flashgen import calls
from flashgen.cases import LAYOUTS
from flashgen.generator import KernelPlan
from tests.device.helpers import MASKS, Complaints, Result, inputs, kernel_of, plan_for, run, smaller_tile

Operands = tuple[Tensor, Tensor, Tensor]


def kernels() -> list[KernelPlan]:
    plans = [plan_for(dims, "bf16", mask, 300) for dims in (64, 128) for mask in MASKS]
    return [*plans, *map(smaller_tile, plans)]


def captured(call: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def refreshed(plan: KernelPlan, operands: Operands, seed: int) -> Result:
    """Put new numbers into the operands; what is then to come out of them."""
    q, k, _ = operands
    new = inputs(plan, q.shape[0], (q.shape[1], k.shape[1]), (q.shape[2], k.shape[2]), seed=seed)
    for x, y in zip(operands, new, strict=True):
        x.copy_(y)
    return run(kernel_of(plan), *(x.clone(memory_format=torch.contiguous_format) for x in operands))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", ["dense", "transposed", "surrounded", "misaligned", "strided_last"])
def test_replays_read_what_the_inputs_hold_then(layout: str, mask: str) -> None:
    plan = plan_for(64, "bf16", mask, 300)
    causal = mask == "causal"
    q, k, v = LAYOUTS[layout](*inputs(plan, 4, (1000, 300), (16, 4)))
    bound = flashgen.bind(q, k, v, causal=causal, return_lse=True)
    ways = {
        "attention": lambda: flashgen.attention(q, k, v, causal=causal, return_lse=True),
        "without LSE": lambda: (flashgen.attention(q, k, v, causal=causal),),
        "bind": bound,
        "kernel": lambda: kernel_of(plan)(q, k, v, return_lse=True),
    }
    complaints = Complaints()
    for name, call in ways.items():
        graph, result = captured(call)
        for seed in range(3):
            expected = refreshed(plan, (q, k, v), seed)
            graph.replay()
            torch.cuda.synchronize()
            complaints.same(f"{name}, replay {seed}", result, expected)
        complaints.same(f"{name}, without the graph", bound(), expected)
    complaints.settle(16)


@pytest.mark.parametrize("mask", MASKS)
def test_the_very_first_call_of_a_kernel_may_be_captured(mask: str) -> None:
    """Its machine code is in the cache and not yet on the GPU."""
    plan = smaller_tile(plan_for(128, "bf16", mask, 300))
    kernel = kernel_of(plan)
    assert kernel._loaded is None, "the kernel was used before: this tests nothing"
    q, k, v = inputs(plan, 2, (500, 300), (8, 2))
    graph, result = captured(lambda: kernel(q, k, v, return_lse=True))
    complaints = Complaints()
    for seed in range(3):
        expected = refreshed(plan, (q, k, v), seed)
        graph.replay()
        torch.cuda.synchronize()
        complaints.same(f"replay {seed}", result, expected)
    complaints.settle(3)


def test_a_call_without_keys_is_captured() -> None:
    q, k, v = inputs(plan_for(64, "bf16", "full", 300), 2, (200, 0), (4, 2))
    graph, result = captured(lambda: flashgen.attention(q, k, v, return_lse=True))
    for x in result:
        x.fill_(7.0)
    graph.replay()
    torch.cuda.synchronize()
    out, lse = result
    assert not bool(out.any()), f"out: {out.unique().tolist()}, not 0"
    assert bool((lse == float("-inf")).all()), f"LSE: {lse.unique().tolist()}, not -inf"


@pytest.mark.parametrize("shared", [False, True], ids=["new numbers", "cold memos"])
def test_graphs_replayed_on_several_streams_at_once(shared: bool) -> None:
    """Dynamic schedulers side by side: each launch must count its own tiles."""
    plan = plan_for(64, "bf16", "causal", 300)
    assert plan.scheduler == "dynamic", "this test needs a kernel that counts tiles"
    many = [inputs(plan, 4, (2000 + 64 * i, 300), (16, 2), seed=i) for i in range(4)]
    expected = [run(kernel_of(plan), *x) for x in many]
    if shared:
        calls.forget_calls()
    graphs = []
    for q, k, v in many:
        graphs.append(captured(lambda q=q, k=k, v=v: [
            flashgen.attention(q, k, v, causal=True, return_lse=True) for _ in range(3)
        ]))  # fmt: skip
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    complaints = Complaints()
    for attempt in range(20):
        eager = []
        for stream, (graph, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
            eager.append(flashgen.attention(*many[0], causal=True, return_lse=True))
        torch.cuda.synchronize()
        for i, (_, results) in enumerate(graphs):
            for j, result in enumerate(results):
                complaints.same(f"attempt {attempt}, graph {i}, call {j}", result, expected[i])
                for x in result:
                    x.fill_(float("nan"))
        for result in eager:
            complaints.same(f"attempt {attempt}, beside the graphs", result, expected[0])
    complaints.settle(320)


def test_branches_of_one_graph_run_at_once() -> None:
    plan = plan_for(64, "bf16", "causal", 300)
    many = [inputs(plan, 4, (2000 + 64 * i, 300), (16, 2), seed=i) for i in range(3)]
    branches = [torch.cuda.Stream() for _ in many]

    def call() -> list[Result]:
        results = []
        main = torch.cuda.current_stream()
        for branch, (q, k, v) in zip(branches, many, strict=True):
            branch.wait_stream(main)
            with torch.cuda.stream(branch):
                results.append(flashgen.attention(q, k, v, causal=True, return_lse=True))
        for branch in branches:
            main.wait_stream(branch)
        return results

    graph, results = captured(call)
    complaints = Complaints()
    for seed in range(10, 20):
        expected = [refreshed(plan, x, seed + i) for i, x in enumerate(many)]
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        for i, result in enumerate(results):
            complaints.same(f"seed {seed}, branch {i}", result, expected[i])
    complaints.settle(30)


def test_a_graph_of_another_capture_writes_to_no_memory_of_torch() -> None:
    """Torch knows nothing of this graph, and gives what was freed during the capture to others."""
    plan = plan_for(64, "bf16", "causal", 300)
    assert plan.scheduler == "dynamic", "this test needs a kernel that counts tiles"
    q, k, v = inputs(plan, 4, (1000, 300), (16, 4))
    bound = flashgen.bind(q, k, v, causal=True, return_lse=True)
    expected = [x.clone() for x in bound()]
    torch.cuda.synchronize()
    cuda, graph, program = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.stream(torch.cuda.Stream()):
        handle = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert cuda.cuStreamBeginCapture_v2(handle, 2) == 0
        for _ in range(3):
            bound()
        assert cuda.cuStreamEndCapture(handle, ctypes.byref(graph)) == 0
        assert cuda.cuGraphInstantiateWithFlags(ctypes.byref(program), graph, ctypes.c_ulonglong(0)) == 0
        others = [torch.full((2,), 7, dtype=torch.int32, device=q.device) for _ in range(64)]
        complaints = Complaints()
        for replay in range(5):
            for x in (bound.out, bound.lse):
                x.fill_(float("nan"))
            assert cuda.cuGraphLaunch(program, handle) == 0
            torch.cuda.synchronize()
            complaints.same(f"replay {replay}", (bound.out, bound.lse), expected)
        left = {x.data_ptr(): x.tolist() for x in others if x.tolist() != [7, 7]}
        complaints.that("tensors made after the capture", f"overwritten: {left}" if left else "")
    complaints.settle(6)


def test_capturing_leaves_no_memory_behind() -> None:
    plan = plan_for(64, "bf16", "causal", 300)
    q, k, v = inputs(plan, 2, (500, 300), (8, 2))

    def round_trip() -> int:
        graph, result = captured(lambda: flashgen.attention(q, k, v, causal=True))
        graph.replay()
        torch.cuda.synchronize()
        del graph, result
        return torch.cuda.memory_allocated()

    first = round_trip()
    after = [round_trip() for _ in range(20)]
    assert after == [first] * 20, f"{first} bytes allocated after one graph, then {after}"
