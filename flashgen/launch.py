"""One packed launch of a kernel. Everything that does not change between calls is made once here."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple

from flashgen.driver import NO_CONTEXT, LaunchConfig, driver
from flashgen.errors import ArgumentError
from flashgen.generator.plan import KernelPlan
from flashgen.loaded import LoadedKernel, Plan
from flashgen.params import forward_params, set_numbers
from flashgen.tensormap import ALIGNMENT, TensorMap, accepted, describe, encode

LOG2_E = math.log2(math.e)
Q_ROWS = 64  # rows of one box of q and of out: what one consumer warpgroup works on
L2_BYTES = 32 << 20  # of the 50 MiB, what keys and values of one group of heads may fill
FEW_HEADS, MANY_HEADS = 8, 64
INDEX_LIMIT = (1 << 31) - (1 << 16)  # tiles, rows and keys are int32, and run past their end by a grid or a tile


class Layout(NamedTuple):
    """Shape and element strides of one operand, (batch, seq, heads, d)."""

    shape: Sequence[int]
    strides: Sequence[int]


@dataclass(frozen=True)
class Geometry:
    """The numbers of ForwardParams and the grid, in blocks."""

    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    m_blocks: int
    tiles: int
    heads_per_group: int
    scale_log2: float
    grid: int


def geometry(plan: KernelPlan, q: Sequence[int], k: Sequence[int], softmax_scale: float, processors: int) -> Geometry:
    """How a problem of these shapes runs on a GPU with that many multiprocessors."""
    batch, seqlen_q, heads_q, head_dim_qk = q
    seqlen_k, heads_kv = k[1], k[2]
    m_blocks = -(-seqlen_q // plan.block_m)
    tiles = m_blocks * batch * heads_q
    check_index_limit(tiles, f"tiles of {plan.block_m} query rows", seqlen_q, seqlen_k)
    bytes_per_head = seqlen_k * (head_dim_qk + plan.spec.head_dim_v) * plan.spec.dtype.bytes
    most = MANY_HEADS if m_blocks < 8 else MANY_HEADS // 2  # from 8 on LongestFirst keeps short tiles for the end
    heads = heads_per_group(batch * heads_q, heads_q // heads_kv, bytes_per_head, most)
    return Geometry(
        batch, heads_q, heads_kv, seqlen_q, seqlen_k, m_blocks, tiles, heads,
        softmax_scale * LOG2_E, tiles if plan.scheduler == "single" else min(processors, tiles),
    )  # fmt: skip


def check_index_limit(tiles: int, which: str, seqlen_q: int, seqlen_k: int) -> None:
    """ArgumentError for a problem with more of anything than a kernel counts."""
    if max(tiles, seqlen_q + seqlen_k) > INDEX_LIMIT:
        got = f"{tiles} {which}, {seqlen_q} + {seqlen_k} queries and keys"
        raise ArgumentError(f"got {got}; at most {INDEX_LIMIT} of either: split the call")


def heads_per_group(heads: int, group: int, bytes_per_head: int, most: int = MANY_HEADS, beyond: int = 2) -> int:
    """How many of ``heads`` query heads (batches counted) share a level of the longest-first order.

    So many that their keys and values stay in L2; where that is few, up to 8 that take ``beyond`` times as much, since
    a level of few heads spreads over many row blocks, which are at different keys. Then whole groups: a small last one
    would run alone. Measured on an H200 (docs/performance.md). ``group``: query heads a key head.
    """
    in_l2, at_most = L2_BYTES // bytes_per_head, beyond * L2_BYTES // bytes_per_head
    return evenly(heads, min(max(1, in_l2, min(FEW_HEADS, at_most)) * group, most, heads))


def evenly(heads: int, wanted: int) -> int:
    """As many of them as wanted or, down to half of that, a number that divides them; else groups as even as can be."""
    return next((n for n in range(wanted, wanted // 2, -1) if heads % n == 0), -(-heads // -(-heads // wanted)))


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch with all its memory. It is never written to again, so threads may run it at the same time.

    The driver copies the arguments before cuLaunchKernelEx returns, so a captured graph holds nothing of this.
    """

    memory: object
    run: partial[int]  # -> CUresult


@dataclass(frozen=True, eq=False)
class DeviceCall(Generic[Plan]):
    """A kernel on a device."""

    kernel: LoadedKernel[Plan]
    device: int

    def describe_into(self, params: ctypes.Structure, name: str, tensor_map: TensorMap, address: int) -> None:
        """Encode what the copy engine reads of one operand into that member of the arguments."""
        offset = getattr(type(params), name).offset
        ctypes.memmove(ctypes.addressof(params) + offset, encode(tensor_map, address, self.device), 128)

    def failed(self, status: int, launch: Launch) -> None:
        """Second try for a thread that has no CUDA context yet; else the driver's error."""
        if status in NO_CONTEXT:
            driver().set_context(self.device)
            status = launch.run()
        driver().check(status, f"launching {self.kernel.plan.name}")


@dataclass(frozen=True, eq=False)
class Call(DeviceCall[KernelPlan]):
    """One forward on one device with one set of shapes, strides and scale: all of a call but its addresses."""

    geometry: Geometry
    maps: tuple[TensorMap, TensorMap, TensorMap, TensorMap]  # q, k, v, out
    like_q: bool  # out has q's layout
    out: Layout
    counts_tiles: bool
    template: ctypes.Structure = field(init=False, repr=False)

    def __post_init__(self) -> None:
        params = forward_params()()
        set_numbers(params, self.geometry)
        params.out_batch_stride, params.out_row_stride, params.out_head_stride = self.out.strides[:3]
        object.__setattr__(self, "template", params)

    def pack(self, q: int, k: int, v: int, out: int, lse: int, counter: int, stream: int) -> Launch:
        """Arguments and launch configuration for these addresses (0 = null) on that stream."""
        memory = _packet()()
        params = memory.params
        ctypes.memmove(ctypes.addressof(params), ctypes.addressof(self.template), ctypes.sizeof(params))
        for name, tensor_map, address in zip(("q", "k", "v", "out"), self.maps, (q, k, v, out), strict=True):
            self.describe_into(params, name, tensor_map, address)
        params.out_data, params.lse, params.tile_counter = out, lse or None, counter or None
        memory.arguments[0] = ctypes.addressof(params)
        plan, config = self.kernel.plan, memory.config
        config.set(self.geometry.grid, plan.threads, plan.smem_bytes, stream)
        launch = partial(
            driver().cuLaunchKernelEx,
            ctypes.addressof(config),
            *self.kernel.functions(self.device),
            ctypes.addressof(memory.arguments),
            None,
        )
        return Launch(memory, launch)


def make_call(
    kernel: LoadedKernel[KernelPlan],
    device: int,
    processors: int,
    operands: Sequence[Layout],
    like_q: bool,
    softmax_scale: float,
) -> Call:
    """All of a call but its addresses, for the layouts of q, k, v and out: legal ones (legal_layout), none empty."""
    plan = kernel.plan
    q, k, v, out = (
        describe(operand.shape, operand.strides, str(plan.spec.dtype), box)
        for operand, box in zip(
            operands,
            (
                (plan.chunk_qk, Q_ROWS),
                (plan.chunk_qk, plan.block_n),
                (plan.chunk_v, plan.block_n),
                (plan.chunk_v, Q_ROWS),
            ),
            strict=True,
        )
    )
    numbers = geometry(plan, operands[0].shape, operands[1].shape, softmax_scale, processors)
    return Call(kernel, device, numbers, (q, k, v, out), like_q, operands[3], plan.scheduler == "dynamic")


def refused(call: Call, addresses: Sequence[int]) -> tuple[int, ...]:
    """Which of q, k, v (0, 1, 2) the driver cannot describe: only stride 0 is in question, so only that is asked."""
    asked = [i for i in range(3) if 0 in call.maps[i].strides]
    return tuple(i for i in asked if not accepted(call.maps[i], addresses[i] & -ALIGNMENT, call.device))


_PACKETS: list[type[ctypes.Structure]] = []


def _packet() -> type[ctypes.Structure]:
    """Parameters, argument pointers and launch configuration in one block of memory."""
    if not _PACKETS:
        fields = (("params", forward_params()), ("config", LaunchConfig), ("arguments", ctypes.c_void_p * 1))
        _PACKETS.append(type("Packet", (ctypes.Structure,), {"_fields_": fields}))
    return _PACKETS[0]
