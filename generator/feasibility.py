"""What fits on the chip: shared memory to the byte, accumulator registers a thread, the register split.

The numbers are those of the fa3 forward; the C++ side asserts that its shared memory struct has this very size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .errors import PlanError
from .request import Epilogue
from .spec import KernelSpec

SMEM_LIMIT = 232_448  # bytes a block may use on sm90: 227 KiB
REGISTER_FILE = 65_536  # 32-bit registers of an SM
SMEM_ALIGN = 1024  # the 128-byte swizzle repeats every 8 rows of 128 bytes
OUTPUT_BYTES = 2  # out is bf16 or fp16 whatever the inputs are
BLOCK_N_STEP = 16  # keys are the K extent of the second product, which goes in steps of 16
BLOCK_N_MAX = 256  # the widest WGMMA
MAX_WARPGROUPS = 3

# Consumer warpgroups -> registers a thread for (producer, consumer), as setmaxnreg takes them.
REGISTER_SPLIT = {1: (56, 248), 2: (24, 240), 3: (32, 160)}
# Consumer registers that are not accumulators: row maxima and sums, addresses, the scores in flight.
CONSUMER_OVERHEAD = {1: 32, 2: 24, 3: 32}


@dataclass(frozen=True)
class SmemRow:
    """One member of the kernel's shared memory: where it starts and how many bytes it takes."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class TileChoice:
    """The choices that decide whether a kernel fits."""

    block_m: int
    block_n: int
    stages: int
    consumer_warpgroups: int
    producer_registers: int
    consumer_registers: int
    overlap: bool
    pingpong: bool
    epilogue: Epilogue


def round_up(value: int, step: int) -> int:
    """The smallest multiple of step that is not below value."""
    return -(-value // step) * step


def padded_head_dims(spec: KernelSpec) -> tuple[int, int]:
    """(d_qk, d_v) as they lie in shared memory: products go in steps of 16, so rows are padded to that."""
    return round_up(spec.head_dim_qk, 16), round_up(spec.head_dim_v, 16)


def smem_table(spec: KernelSpec, block_m: int, block_n: int, stages: int, epilogue: Epilogue) -> tuple[SmemRow, ...]:
    """Every member of the shared memory in order, with its exact place; the last row is the tail's padding."""
    qk, v = padded_head_dims(spec)
    element = spec.dtype.bytes
    members = (
        ("q", block_m * qk * element, SMEM_ALIGN),
        ("k", stages * block_n * qk * element, SMEM_ALIGN),
        ("v", stages * block_n * v * element, SMEM_ALIGN),
        ("out", block_m * v * OUTPUT_BYTES if epilogue is Epilogue.tile else 0, SMEM_ALIGN),
        # q_full, q_empty, tile_full, tile_empty, and full and empty of every stage of k and of v.
        ("barriers", 8 * (4 + 4 * stages), 8),
        ("tile", 8, 8),
    )
    rows, end = [], 0
    for name, size, align in members:
        if size:
            start = round_up(end, align)
            rows.append(SmemRow(name, start, size))
            end = start + size
    total = round_up(end, SMEM_ALIGN)
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


def problem(spec: KernelSpec, choice: TileChoice) -> PlanError | None:
    """The first reason why a choice cannot be built, with numbers and the nearest that can; None when it can."""
    m, n, groups = choice.block_m, choice.block_n, choice.consumer_warpgroups
    if not 1 <= groups <= MAX_WARPGROUPS:
        return PlanError(f"warpgroups: got {groups}; legal: 1 to {MAX_WARPGROUPS} consumer warpgroups", key="warpgroups")
    if m != 64 * groups:
        near = min(max(round(m / 64), 1), MAX_WARPGROUPS)
        return PlanError(
            f"tile m: got {m} with {groups} consumer warpgroup(s) of 64 rows; legal: {64 * groups}"
            + (f", or warpgroups: {near} with m: {64 * near}" if near != groups else ""),
            key="tile",
        )
    if n % BLOCK_N_STEP or not BLOCK_N_STEP <= n <= BLOCK_N_MAX:
        near = min(max(round(n / BLOCK_N_STEP), 1), BLOCK_N_MAX // BLOCK_N_STEP) * BLOCK_N_STEP
        legal = f"multiples of {BLOCK_N_STEP} from {BLOCK_N_STEP} to {BLOCK_N_MAX}"
        return PlanError(f"tile n: got {n}; legal: {legal}; nearest: {near}", key="tile")
    least = 2 if choice.overlap else 1
    if choice.stages < least:
        why = "with overlap, which needs two blocks in flight" if choice.overlap else "without overlap"
        return PlanError(f"stages: got {choice.stages}; legal: {least} or more {why}", key="stages")
    if choice.pingpong and groups < 2:
        return PlanError("pingpong: got true with 1 consumer warpgroup; legal: 2 or 3 take turns, 1 cannot", key="pingpong")
    return _registers(choice) or _epilogue(spec, choice) or _memory(spec, choice) or _accumulators(spec, choice)


def _registers(choice: TileChoice) -> PlanError | None:
    groups = choice.consumer_warpgroups
    producer, consumer = REGISTER_SPLIT[groups]
    usual = f"usual with {groups} consumer warpgroup(s): {{producer: {producer}, consumer: {consumer}}}"
    for name, got in (("producer", choice.producer_registers), ("consumer", choice.consumer_registers)):
        if got % 8 or not 24 <= got <= 256:
            return PlanError(f"registers {name}: got {got}; legal: multiples of 8 from 24 to 256; {usual}", key="registers")
    wanted = 128 * (choice.producer_registers + groups * choice.consumer_registers)
    pool = register_pool(groups)
    if wanted > pool:
        return PlanError(f"registers: the split takes {wanted}, and a block owns {pool}; {usual}", key="registers")
    return None


def _epilogue(spec: KernelSpec, choice: TileChoice) -> PlanError | None:
    qk, v = padded_head_dims(spec)
    if choice.epilogue is Epilogue.over_q and v * OUTPUT_BYTES > qk * spec.dtype.bytes:
        return PlanError(
            f"epilogue over_q: a row of out takes {v * OUTPUT_BYTES} bytes, and one of q only {qk * spec.dtype.bytes}; "
            "legal: tile",
            key="epilogue",
        )
    return None


def _memory(spec: KernelSpec, choice: TileChoice) -> PlanError | None:
    wanted = smem_total(smem_table(spec, choice.block_m, choice.block_n, choice.stages, choice.epilogue))
    if wanted <= SMEM_LIMIT:
        return None
    return PlanError(
        f"tile {choice.block_m}x{choice.block_n} with {choice.stages} stages and head dim {spec.head_dim_name[1:]} needs "
        f"{wanted} bytes of shared memory; {SMEM_LIMIT} are available{_nearest(spec, choice)}",
        key="tile",
    )


def _accumulators(spec: KernelSpec, choice: TileChoice) -> PlanError | None:
    wanted = accumulator_registers(choice.block_n, spec.head_dim_v)
    limit = accumulator_limit(choice.consumer_warpgroups, choice.consumer_registers)
    if wanted <= limit:
        return None
    return PlanError(
        f"tile {choice.block_m}x{choice.block_n} with head dim v {spec.head_dim_v} needs {wanted} accumulator registers a "
        f"thread; {limit} are available with {choice.consumer_registers} consumer registers{_nearest(spec, choice)}",
        key="tile",
    )


def _smaller(choice: TileChoice) -> Iterator[TileChoice]:
    """Choices like this one, nearest first: fewer keys, then fewer stages, then fewer warpgroups with their own split."""
    least = 2 if choice.overlap else 1
    for groups in range(choice.consumer_warpgroups, 0, -1):
        near = choice
        if groups != choice.consumer_warpgroups:
            producer, consumer = REGISTER_SPLIT[groups]
            near = replace(
                choice, block_m=64 * groups, consumer_warpgroups=groups, producer_registers=producer,
                consumer_registers=consumer, pingpong=choice.pingpong and groups > 1,
            )  # fmt: skip
        for stages in range(choice.stages, least - 1, -1):
            for block_n in range(choice.block_n, 0, -BLOCK_N_STEP):
                yield replace(near, stages=stages, block_n=block_n)


def fits(spec: KernelSpec, choice: TileChoice) -> bool:
    """Whether memory and registers suffice for a choice that is otherwise legal."""
    rows = smem_table(spec, choice.block_m, choice.block_n, choice.stages, choice.epilogue)
    limit = accumulator_limit(choice.consumer_warpgroups, choice.consumer_registers)
    return smem_total(rows) <= SMEM_LIMIT and accumulator_registers(choice.block_n, spec.head_dim_v) <= limit


def _nearest(spec: KernelSpec, choice: TileChoice) -> str:
    for near in _smaller(choice):
        if fits(spec, near):
            return f"; nearest that fits: tile {{m: {near.block_m}, n: {near.block_n}}}, stages: {near.stages}"
    return ""
