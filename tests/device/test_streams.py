"""Streams, threads and the host: the current stream is used, nothing waits for the GPU, nothing accumulates."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import flashgen
from flashgen import calls
from flashgen.cases import LAYOUTS
from flashgen.generator import KernelPlan
from tests.device.helpers import MASKS, SLEEP, Complaints, Result, difference, inputs, kernel_of, plan_for, run

Run = Callable[[], Result]


def kernels() -> list[KernelPlan]:
    return [plan_for(dims, "bf16", mask, 300) for dims in (64, 72, 128) for mask in MASKS]


def paths(seqlens: tuple[int, int] = (203, 239)) -> dict[str, tuple[list[torch.Tensor], Run]]:
    """Every way to a launch: the tensors it reads, and the call."""
    found: dict[str, tuple[list[torch.Tensor], Run]] = {}
    plan = plan_for(64, "bf16", "causal", 300)
    for name in ("dense", "transposed", "expanded_heads", "misaligned", "strided_last", "odd_rows"):
        q, k, v = LAYOUTS[name](*inputs(plan, 2, seqlens, (4, 2)))
        found[name] = [q, k, v], lambda q=q, k=k, v=v: flashgen.attention(q, k, v, causal=True, return_lse=True)
    q, k, v = inputs(plan, 2, seqlens, (4, 2))
    found["bind"] = [q, k, v], flashgen.bind(q, k, v, causal=True, return_lse=True)
    x, y, z = LAYOUTS["misaligned"](*inputs(plan, 2, seqlens, (4, 2)))
    found["bind, misaligned"] = [x, y, z], flashgen.bind(x, y, z, causal=True, return_lse=True)
    kernel = kernel_of(plan_for(72, "bf16", "full", 300))
    a, b, c = inputs(kernel.plan, 2, seqlens, (4, 2))
    found["kernel"] = [a, b, c], lambda: kernel(a, b, c, return_lse=True)
    d, e, f = inputs(plan, 2, (seqlens[0], 0), (4, 2))
    found["no keys"] = [d, e, f], lambda: flashgen.attention(d, e, f, return_lse=True)
    return found


def test_work_is_done_on_the_current_stream_in_its_order() -> None:
    """A long kernel, then new inputs, then attention: on any other stream it would read the old ones."""
    complaints, side = Complaints(), torch.cuda.Stream()
    for name, (tensors, call) in paths().items():
        dense = [x for x in tensors if 0 not in x.stride()]
        fresh = [x.clone() for x in dense]
        expected = tuple(x.clone() for x in call())
        for x in dense:
            x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP)
            for x, good in zip(dense, fresh, strict=True):
                x.copy_(good)
            got = call()
        side.synchronize()
        complaints.that(name, difference(got, expected))
    complaints.settle(10)


def test_no_path_waits_for_the_gpu() -> None:
    with pytest.raises(RuntimeError, match="synchronizing"):
        unsynchronised(lambda: torch.zeros(1, device="cuda").item())
    complaints = Complaints()
    cold = paths((200, 230))  # bind and the first launch of a shape must not wait either
    for name, (_, call) in (paths() | {f"{name}, first call": it for name, it in cold.items()}).items():
        if "first" not in name:
            call()
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP)
        slept = torch.cuda.Event()
        slept.record()
        kept = unsynchronised(call)
        complaints.that(name, "the host waited for the GPU" if slept.query() else "")
        torch.cuda.synchronize()
        del kept
    complaints.settle(20)


def unsynchronised(call: Callable[[], object]) -> object:
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_does_not_grow() -> None:
    torch.cuda.synchronize()
    for name, (_, call) in paths().items():
        for _ in range(3):
            call()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for _ in range(1000):
            call()
        after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        assert after == before, f"{name}: {before} bytes allocated and reserved before 1000 calls, {after} after them"


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that change places often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(count: int, work: Callable[[int], str]) -> None:
    """Run ``work`` in threads that start at once; each gives back what is wrong."""
    wrong: list[str] = []
    together = threading.Barrier(count)

    def body(index: int) -> None:
        try:
            together.wait(60)
            found = work(index)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            wrong.append(f"thread {index}: {found}")

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("forgetting", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("where", ["own streams", "one stream", "per-thread stream"])
@pytest.mark.usefixtures("restless")
def test_threads_at_once_give_right_answers(where: str, forgetting: bool) -> None:
    """``cold``: memos are emptied all the while, as flashgen.load does it."""
    todo = []
    for i in range(8):
        plan = plan_for((64, 128)[i % 2], "bf16", MASKS[i // 2 % 2], 300)
        q, k, v = inputs(plan, 1 + i % 3, (100 + 77 * i, 300), (8, 2), seed=i)
        todo.append((plan, q, k, v, run(kernel_of(plan), q, k, v)))
    torch.cuda.synchronize()

    def work(i: int) -> str:
        plan, q, k, v, expected = todo[i]
        streams = {"own streams": torch.cuda.Stream, "one stream": torch.cuda.default_stream}
        stream = streams[where]() if where in streams else torch.cuda.ExternalStream(2)
        with torch.cuda.stream(stream):
            got = []
            for call in range(50):
                if forgetting and call % 8 == i:
                    calls.forget_calls()
                got.append(flashgen.attention(q, k, v, causal=plan.spec.mask == "causal", return_lse=True))
        stream.synchronize()
        wrong = [f"call {call}: {text}" for call, result in enumerate(got) if (text := difference(result, expected))]
        return "; ".join(wrong[:3])

    in_threads(8, work)


def test_a_thread_that_never_used_cuda_may_launch() -> None:
    plan = plan_for(64, "bf16", "causal", 300)
    tensors = [inputs(plan, 2, (203, 239), (4, 2), seed=i) for i in range(4)]
    expected = [run(kernel_of(plan), *x) for x in tensors]
    bound = [flashgen.bind(*x, causal=True, return_lse=True) for x in tensors]
    torch.cuda.synchronize()
    results: list[Result] = [(torch.empty(0), torch.empty(0))] * 4

    def work(i: int) -> str:
        results[i] = bound[i]()
        return ""

    in_threads(4, work)
    torch.cuda.synchronize()
    for i in range(4):
        wrong = difference(results[i], expected[i])
        assert not wrong, f"thread {i}: {wrong}"


def test_more_shapes_than_are_remembered() -> None:
    plan = plan_for(64, "bf16", "full", 300)
    q, k, v = inputs(plan, 1, (calls.MAX_CALLS + 50, 64), (2, 1))
    first = [flashgen.attention(q[:, :rows], k, v) for rows in range(1, 30)]
    for rows in range(1, q.shape[1] + 1):
        flashgen.attention(q[:, :rows], k, v)
    again = [flashgen.attention(q[:, :rows], k, v) for rows in range(1, 30)]
    complaints = Complaints()
    for rows, (a, b) in enumerate(zip(first, again, strict=True), 1):
        complaints.same(f"{rows} rows", (a,), (b,))
    complaints.settle(29)
