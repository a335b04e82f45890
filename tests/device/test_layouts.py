"""However q, k, v and out lie in memory: the same bits, nothing written beside out and LSE, nothing into the inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

import flashgen
from flashgen.callable_kernel import Kernel
from flashgen.cases import LAYOUTS
from flashgen.generator import KernelPlan
from tests.device.helpers import DEVICE, NAN, Complaints, Dims, bits, difference, inputs, kernel_of, plan_for, run

KINDS: tuple[tuple[Dims, str], ...] = ((24, "fp16"), (64, "bf16"), (128, "bf16"), ((192, 128), "fp16"), (256, "bf16"))
SEQLENS = ((1, 65), (129, 239), (799, 113), (1025, 1024))
SENTINEL = 0x5A5A  # of memory that must not be written to: no NaN, which a kernel might write


@cache
def plans() -> tuple[KernelPlan, ...]:
    return tuple(plan_for(dims, dtype, mask, 600) for dims, dtype in KINDS for mask in ("full", "causal"))


def kernels() -> list[KernelPlan]:
    return list(plans())


def guarded(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor of sentinels."""
    kind = bits(torch.empty(1, dtype=dtype)).dtype
    return torch.full(shape, SENTINEL, dtype=kind, device=DEVICE).view(dtype)


# Room for an out of (b, s, h, d), and the part of it that is out.
ALL, EVEN = slice(None), slice(0, None, 2)
OUTS: dict[str, Callable[[int, int, int, int, torch.dtype], tuple[Tensor, Tensor]]] = {
    "rows within": lambda b, s, h, d, t: _part(guarded((b, s + 300, h, d), t), (slice(None), slice(150, 150 + s))),
    "heads within": lambda b, s, h, d, t: _part(guarded((b, s, 3 * h, d), t), (..., slice(h, 2 * h), slice(None))),
    "columns within": lambda b, s, h, d, t: _part(guarded((b, s, h, d + 80), t), (..., slice(8, 8 + d))),
    "batches within": lambda b, s, h, d, t: _part(guarded((3 * b, s, h, d), t), (slice(1, 3 * b, 3),)),
    "every second row": lambda b, s, h, d, t: _part(guarded((b, 2 * s, h, d), t), (slice(None), slice(1, None, 2))),
    "every second head": lambda b, s, h, d, t: _part(guarded((b, s, 2 * h, d), t), (..., EVEN, ALL)),
    "heads first": lambda b, s, h, d, t: _turned(guarded((b, h, s + 200, d), t), (0, 2, 1, 3), s),
    "rows first": lambda b, s, h, d, t: _turned(guarded((s + 200, h, b, d), t), (2, 0, 1, 3), s),
    "batches last": lambda b, s, h, d, t: _turned(guarded((h, s + 200, b, d), t), (2, 1, 0, 3), s),
}  # fmt: skip


def _part(room: Tensor, where: tuple[object, ...]) -> tuple[Tensor, Tensor]:
    return room, room[where]


def _turned(room: Tensor, order: tuple[int, ...], seqlen: int) -> tuple[Tensor, Tensor]:
    return room, room.permute(order)[:, 100 : 100 + seqlen]


@pytest.mark.parametrize("plan", range(2 * len(KINDS)))
class TestEachKernel:
    """Views through each kernel's copies and stores."""

    @pytest.fixture
    def kernel(self, plan: int) -> Kernel:
        return kernel_of(plans()[plan])

    def test_views_give_the_bits_of_contiguous_copies(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for seqlens in SEQLENS:
            dense = inputs(kernel.plan, 3, seqlens, (6, 2), kind="outliers")
            for name, change in LAYOUTS.items():
                views = change(*dense)
                expected = run(kernel, *(x.clone(memory_format=torch.contiguous_format) for x in views))
                complaints.same(f"{seqlens}, {name}", run(kernel, *views), expected)
                causal = kernel.spec.mask == "causal"
                complaints.same(
                    f"attention, {seqlens}, {name}",
                    flashgen.attention(*views, causal=causal, return_lse=True),
                    flashgen.attention(*(x.contiguous() for x in views), causal=causal, return_lse=True),
                )
        complaints.settle(2 * len(SEQLENS) * len(LAYOUTS))

    def test_views_of_every_order_of_dimensions(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for seqlens in SEQLENS:
            q, k, v = inputs(kernel.plan, 2, seqlens, (4, 2))
            expected = run(kernel, q, k, v)
            for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
                back = tuple(order.index(i) for i in range(3))
                views = [x.permute(*order, 3).contiguous().permute(*back, 3) for x in (q, k, v)]
                complaints.same(f"{seqlens}, stored as {order}", run(kernel, *views), expected)
        complaints.settle(6 * len(SEQLENS))

    def test_stride_0_is_a_copy_that_is_not_made(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for seqlens in SEQLENS:
            small = inputs(kernel.plan, 1, seqlens, (1, 1), kind="wide")
            for names in ("q", "k", "v", "kv", "qkv"):
                for batch, heads in ((4, 1), (1, 6), (4, 6)):
                    sizes = [(batch, x.shape[1], heads, x.shape[3]) for x in small]
                    copies = [x.expand(size).contiguous() for x, size in zip(small, sizes, strict=True)]
                    views = [x.expand(size) if name in names else copy
                             for name, x, size, copy in zip("qkv", small, sizes, copies, strict=True)]  # fmt: skip
                    complaints.same(
                        f"{seqlens}, {names} to {batch} x {heads}", run(kernel, *views), run(kernel, *copies)
                    )
        complaints.settle(15 * len(SEQLENS))

    def test_out_is_written_where_it_lies_and_nowhere_else(self, kernel: Kernel) -> None:
        complaints = Complaints()
        for seqlens in SEQLENS:
            q, k, v = inputs(kernel.plan, 2, seqlens, (4, 2))
            given = [x.clone() for x in (q, k, v)]
            expected = run(kernel, q, k, v)
            for name, make in OUTS.items():
                room, out = make(2, seqlens[0], 4, v.shape[3], q.dtype)
                out.fill_(NAN)
                lse_room = guarded((expected[1].numel() + 512,), torch.float32)
                lse = lse_room[256:-256].view(expected[1].shape)
                lse.fill_(NAN)
                kernel.into(q, k, v, out, lse)
                complaints.same(f"{seqlens}, {name}", (out, lse), expected)
                for tensor, everything in ((out, room), (lse, lse_room)):
                    bits(tensor).fill_(SENTINEL)
                    touched = int((bits(everything) != SENTINEL).sum())
                    complaints.that(f"{seqlens}, {name}", f"{touched} numbers were written outside" if touched else "")
            complaints.that(f"{seqlens}, inputs", difference((q, k), given[:2]) or difference((v,), given[2:]))
        complaints.settle((3 * len(OUTS) + 1) * len(SEQLENS))
