"""Grids beyond 65,535, offsets beyond 2^31 elements, long sequences, and tile counters that are left at zero."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import flashgen
from flashgen import counters
from flashgen.generator import KernelPlan
from flashgen.testing import judge
from tests.device.helpers import (
    DEVICE,
    MASKS,
    NAN,
    Complaints,
    Dims,
    Result,
    difference,
    inputs,
    kernel_of,
    plan_for,
    run,
)  # fmt: skip

DIMS: tuple[Dims, ...] = (16, 64, 128, 256)
GIB = 1 << 30
FAR = 2_700_000_000  # elements, beyond 2^31, of a room of 5.4 GB


def kernels() -> list[KernelPlan]:
    return [plan_for(d, "bf16", mask, keys) for d in (*DIMS, 8) for mask in MASKS for keys in (1, 4224)]


def need_memory(gib: int) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0] / GIB
    if free < gib:
        pytest.skip(f"needs {gib} GiB of GPU memory, {free:.0f} are free")


def judged(plan: KernelPlan, result: Result, q: Tensor, k: Tensor, v: Tensor) -> str:
    verdict = judge(*result, q, k, v, causal=plan.spec.mask == "causal")
    return "" if verdict.ok else str(verdict)


def windows(plan: KernelPlan, result: Result, q: Tensor, k: Tensor, v: Tensor, starts: list[int]) -> Complaints:
    """Judge 16 rows from each start, with the keys that the last of them sees."""
    complaints = Complaints()
    for start in starts:
        rows = slice(start, min(start + 16, q.shape[1]))
        keys = rows.stop + k.shape[1] - q.shape[1] if plan.spec.mask == "causal" else k.shape[1]
        part = result[0][:, rows], result[1][:, :, rows]
        complaints.that(f"{plan.name}, {rows}", judged(plan, part, q[:, rows], k[:, :keys], v[:, :keys]))
    return complaints


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("batch", "seqlens", "heads"),
    [(70_001, (5, 7), (2, 1)), (1, (5, 7), (131_074, 65_537)), (3, (1, 9), (70_000, 70_000)), (66_000, (9, 5), (8, 1))],
    ids=["batches", "heads", "heads of several batches", "both"],
)  # fmt: skip
def test_more_batches_or_heads_than_65535(
    batch: int, seqlens: tuple[int, int], heads: tuple[int, int], mask: str
) -> None:
    complaints = Complaints()
    for dims in DIMS[:2] if heads[0] == 8 else DIMS:
        plan = plan_for(dims, "bf16", mask, seqlens[1])
        q, k, v = inputs(plan, batch, seqlens, heads)
        complaints.that(plan.name, judged(plan, run(kernel_of(plan), q, k, v), q, k, v))
    complaints.settle()


@pytest.mark.parametrize("mask", MASKS)
def test_more_tiles_of_rows_than_65535(mask: str) -> None:
    plan = plan_for(16, "bf16", mask, 9)
    rows = 65_537 * plan.block_m + 5
    q, k, v = inputs(plan, 1, (rows, 9), (1, 1))
    result = run(kernel_of(plan), q, k, v)
    blind = rows - 9 if mask == "causal" else 0
    assert not bool(result[0][:, :blind].any()), "a row without keys is not 0"
    assert bool((result[1][:, :, :blind] == float("-inf")).all()), "a row without keys has an LSE"
    assert not judged(plan, (result[0][:, blind:], result[1][:, :, blind:]), q[:, blind:], k, v)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dims", [64, 128, 256])
def test_strides_reach_beyond_2_to_the_31_elements(dims: int, mask: str) -> None:
    need_memory(12)
    plan = plan_for(dims, "bf16", mask, 300)
    operands = inputs(plan, 3, (200, 300), (4, 4))
    expected = run(kernel_of(plan), *operands)
    room = torch.full((FAR,), NAN, dtype=torch.bfloat16, device=DEVICE)
    complaints = Complaints()
    for dim, name in enumerate(("batch", "row", "head")):
        for i in range(4):
            x = expected[0] if i == 3 else operands[i]
            view = far(room, x, dim)
            assert max((n - 1) * s for n, s in zip(x.shape, view.stride(), strict=True)) > 1 << 31
            result = expected[0].clone(), torch.full_like(expected[1], NAN)
            if i == 3:
                result = view, result[1]
            else:
                view.copy_(x)
            kernel_of(plan).into(*(view if j == i else y for j, y in enumerate(operands)), *result)
            complaints.same(f"{name}s of {'qkvo'[i]} far apart", result, expected)
            view.fill_(NAN)
            stray = sum(int((~part.isnan()).sum()) for part in room.split(1 << 29))
            complaints.that(f"{name}s of {'qkvo'[i]} far apart", f"{stray} numbers written outside" if stray else "")
    complaints.settle(24)


def far(room: Tensor, like: Tensor, dim: int) -> Tensor:
    """A view of a tensor's shape whose steps along ``dim`` span the room, the other dimensions dense."""
    strides, step = [0, 0, 0, 1], like.shape[3]
    for other in (2, 1, 0):
        if other != dim:
            strides[other] = step
            step *= like.shape[other]
    strides[dim] = (room.numel() - step) // (like.shape[dim] - 1) // 8 * 8
    return room.as_strided(tuple(like.shape), strides)


@pytest.mark.parametrize(("dims", "batch", "rows"), [(8, 257, 1 << 23), (256, 65, (1 << 17) + 3)], ids=["d8", "d256"])
def test_out_and_lse_larger_than_4_gigabytes(dims: int, batch: int, rows: int) -> None:
    """All batches are one: every one must have its bits. At d8 LSE has more than 2^31 numbers, out 34 GB."""
    need_memory(95 if dims == 8 else 16)
    plan = plan_for(dims, "bf16", "full", 24)
    q, k, v = inputs(plan, 1, (rows, 24), (1, 1))
    one = run(kernel_of(plan), q, k, v)
    assert not windows(plan, one, q, k, v, [0, 5000, rows - 16]).lines
    out, lse = run(kernel_of(plan), *(x.expand(batch, -1, -1, -1) for x in (q, k, v)))
    assert out.numel() > 1 << 31
    wrong = [b for b in range(batch) if difference((out[b : b + 1], lse[b : b + 1]), one)]
    assert not wrong, f"{len(wrong)} of {batch} batches differ from the same problem alone, first {wrong[:8]}"


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dims", [64, 128, 256])
def test_long_sequences(dims: int, mask: str) -> None:
    plan = plan_for(dims, "bf16", mask, 65_536)
    q, k, v = inputs(plan, 1, (65_536, 65_536), (2, 1))
    result = run(kernel_of(plan), q, k, v)
    assert not bool(result[0].isnan().any()), "a row was not written"
    assert not bool(result[1].isnan().any()), "an LSE was not written"
    starts = [0, 112, 120, 1000, 32_760, 49_999, 65_535 - 128, 65_520]
    windows(plan, result, q, k, v, starts).settle(len(starts))


@pytest.mark.parametrize("mask", MASKS)
def test_few_queries_over_a_million_keys(mask: str) -> None:
    plan = plan_for(64, "bf16", mask, 1_000_003)
    for rows in (1, 203):
        q, k, v = inputs(plan, 1, (rows, 1_000_003), (4, 1), kind="wide")
        wrong = judged(plan, run(kernel_of(plan), q, k, v), q, k, v)
        assert not wrong, f"{rows} queries: {wrong}"


def counter_at(address: int) -> list[int]:
    """The two numbers of a tile counter, which no tensor holds."""
    memory = SimpleNamespace(
        __cuda_array_interface__={"shape": (2,), "typestr": "<i4", "data": (address, False), "version": 3}
    )
    return list(torch.as_tensor(memory, device=DEVICE).tolist())


def test_tile_counters_are_left_at_zero() -> None:
    plan = plan_for(64, "bf16", "causal", 500)
    assert plan.scheduler == "dynamic", "this test needs a kernel that counts tiles"
    many = [inputs(plan, 2, (1000 + 64 * i, 500), (16, 2), seed=i) for i in range(6)]
    expected = [run(kernel_of(plan), *x) for x in many]
    streams = [torch.cuda.Stream() for _ in many]
    torch.cuda.synchronize()
    complaints = Complaints()
    for _ in range(10):
        results: list[list[Result]] = [[] for _ in many]
        for _ in range(5):
            for stream, x, got in zip(streams, many, results, strict=True):
                with torch.cuda.stream(stream):
                    got.append(flashgen.attention(*x, causal=True, return_lse=True))
        torch.cuda.synchronize()
        for i, got in enumerate(results):
            for result in got:
                complaints.same(f"stream {i}", result, expected[i])
        left = {key: counter_at(address) for key, address in counters._slots.items()}
        complaints.that("counters", "" if not any(map(any, left.values())) else f"left at {left}")
    assert {stream.cuda_stream for stream in streams} <= {stream for _, stream in counters._slots}
    complaints.settle(310)
