"""What a kernel takes of the chip: shared memory to the byte, accumulator registers a thread, the register split.

The numbers are those of the fa3 forward; the C++ side asserts that its shared memory struct has this very size.
"""

from __future__ import annotations

from dataclasses import dataclass

from .request import Epilogue
from .spec import KernelSpec

SMEM_LIMIT = 232_448  # bytes a block may use on sm90: 227 KiB
REGISTER_FILE = 65_536  # 32-bit registers of an SM
SMEM_ALIGN = 1024  # the 128-byte swizzle repeats every 8 rows of 128 bytes
SWIZZLES = (128, 64, 32)  # bytes of a row that TMA and WGMMA permute together
OUTPUT_BYTES = 2  # out is bf16 or fp16 whatever the inputs are

# Consumer warpgroups -> registers a thread for (producer, consumer), as setmaxnreg takes them.
REGISTER_SPLIT = {1: (56, 248), 2: (24, 240), 3: (32, 160)}
# Consumer registers that are not accumulators: row maxima and sums, addresses, the scores in flight.
CONSUMER_OVERHEAD = {1: 32, 2: 24, 3: 28}


@dataclass(frozen=True)
class SmemRow:
    """One member of a stretch of memory: where it starts and how many bytes it takes."""

    name: str
    offset: int
    bytes: int


def round_up(value: int, step: int) -> int:
    """The smallest multiple of step that is not below value."""
    return -(-value // step) * step


def padded_head_dims(spec: KernelSpec, swizzles: tuple[int, int]) -> tuple[int, int]:
    """(d_qk, d_v) as they lie in shared memory: whole rows of the swizzle, in bytes, that each is copied with."""
    qk, v = (swizzle // spec.dtype.bytes for swizzle in swizzles)
    return round_up(spec.head_dim_qk, qk), round_up(spec.head_dim_v, v)


def natural_swizzle(head_dim: int, element: int) -> int:
    """The widest swizzle that adds no more columns than the products' own padding, in bytes."""
    row = round_up(head_dim, 16) * element
    return next(swizzle for swizzle in SWIZZLES if row % swizzle == 0)


def usual_swizzle(head_dim: int, element: int) -> int:
    """The swizzle that measured best, in bytes: the natural one, but the widest where rows start off a 32-byte sector
    or the natural one is the narrowest: narrow copies of such rows cost more than the room that they save."""
    natural = natural_swizzle(head_dim, element)
    return SWIZZLES[0] if head_dim * element % 32 or natural == SWIZZLES[-1] else natural


def smem_table(
    spec: KernelSpec,
    block_m: int,
    block_n: int,
    stages: int,
    epilogue: Epilogue,
    swizzles: tuple[int, int],
    stages_q: int = 1,
) -> tuple[SmemRow, ...]:
    """Every member of the shared memory in order, with its exact place; the last row is the tail's padding."""
    qk, v = padded_head_dims(spec, swizzles)
    element = spec.dtype.bytes
    groups = block_m // 64
    return layout(
        ("q", stages_q * block_m * qk * element, SMEM_ALIGN),
        ("k", stages * block_n * qk * element, SMEM_ALIGN),
        ("v", stages * block_n * v * element, SMEM_ALIGN),
        ("out", block_m * v * OUTPUT_BYTES if epilogue is Epilogue.tile else 0, SMEM_ALIGN),
        ("tile", 2 * 16, SMEM_ALIGN),  # coordinates of the tile being computed and of the next
        # full and empty of every warpgroup's stages of q, of every stage of k and of v, and of both tiles.
        ("barriers", 8 * (2 * groups * stages_q + 4 * stages + 4), 8),
    )


def layout(*members: tuple[str, int, int], align: int = SMEM_ALIGN) -> tuple[SmemRow, ...]:
    """Members (name, bytes, alignment) one after another, but for empty ones, as a C++ struct has them.

    The last row pads the whole to ``align``.
    """
    rows, end = [], 0
    for name, size, step in members:
        if size:
            start = round_up(end, step)
            rows.append(SmemRow(name, start, size))
            end = start + size
    total = round_up(end, align)
    if total > end:
        rows.append(SmemRow("padding", end, total - end))
    return tuple(rows)


def smem_total(rows: tuple[SmemRow, ...]) -> int:
    """Bytes of the whole table."""
    return rows[-1].offset + rows[-1].bytes


def accumulator_table(block_n: int, head_dim_v: int) -> tuple[tuple[str, int], ...]:
    """Registers a thread for S (fp32), P (16-bit, packed in pairs) and O (fp32)."""
    return ("s", block_n // 2), ("p", block_n // 4), ("o", head_dim_v // 2)


def accumulator_registers(block_n: int, head_dim_v: int) -> int:
    """Registers a consumer thread holds for S, P and O together."""
    return sum(count for _, count in accumulator_table(block_n, head_dim_v))


def accumulator_limit(consumer_warpgroups: int, consumer_registers: int) -> int:
    """The most accumulator registers a consumer thread may hold without spilling."""
    return consumer_registers - CONSUMER_OVERHEAD[consumer_warpgroups]


def register_pool(consumer_warpgroups: int) -> int:
    """Registers that a block owns from its launch on, which setmaxnreg can only hand around.

    A launch gives every thread the same multiple of 8, so a split that needs more would wait for ever.
    """
    threads = (consumer_warpgroups + 1) * 128
    return min(REGISTER_FILE // threads // 8 * 8, 248) * threads
