"""What fits: the first reason why a choice cannot be built, with numbers and the nearest choice that can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from .errors import PlanError
from .footprint import (
    REGISTER_SPLIT,
    SMEM_LIMIT,
    SWIZZLES,
    SmemRow,
    accumulator_limit,
    accumulator_registers,
    register_pool,
    smem_table,
    smem_total,
)
from .request import Epilogue
from .spec import KernelSpec

BLOCK_N_STEP = 16  # keys are the K extent of the second product, which goes in steps of 16
BLOCK_N_MAX = 256  # the widest WGMMA
MAX_WARPGROUPS = 3
MAX_STAGES = 220  # more could not fit however small the blocks are


@dataclass(frozen=True)
class TileChoice:
    """The choices that decide whether a kernel fits."""

    block_m: int
    block_n: int
    stages: int
    stages_q: int
    consumer_warpgroups: int
    producer_registers: int
    consumer_registers: int
    overlap: bool
    pingpong: bool
    epilogue: Epilogue
    swizzle_qk: int
    swizzle_v: int

    @property
    def swizzles(self) -> tuple[int, int]:
        """Bytes of a row that are permuted together, of (q and k, v and out)."""
        return self.swizzle_qk, self.swizzle_v


def problem(spec: KernelSpec, choice: TileChoice) -> PlanError | None:
    """The first reason why a choice cannot be built, with numbers and the nearest that can; None when it can."""
    m, n, groups = choice.block_m, choice.block_n, choice.consumer_warpgroups
    if not 1 <= groups <= MAX_WARPGROUPS:
        return PlanError(f"warpgroups: got {groups}; legal: 1 to {MAX_WARPGROUPS}", key="warpgroups")
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
    if choice.stages_q < 1:
        return PlanError(f"stages_q: got {choice.stages_q}; legal: 1 or more", key="stages_q")
    if choice.pingpong and groups < 2:
        return PlanError("pingpong: got true with 1 consumer warpgroup; legal: 2 or 3 of them", key="pingpong")
    return register_problem(choice) or swizzle_problem(choice) or _memory(spec, choice) or _accumulators(spec, choice)


class Choice(Protocol):
    """What the registers and the swizzles of a kernel are checked by."""

    @property
    def consumer_warpgroups(self) -> int: ...  # noqa: D102
    @property
    def producer_registers(self) -> int: ...  # noqa: D102
    @property
    def consumer_registers(self) -> int: ...  # noqa: D102
    @property
    def swizzle_qk(self) -> int: ...  # noqa: D102
    @property
    def swizzle_v(self) -> int: ...  # noqa: D102


def register_problem(choice: Choice) -> PlanError | None:
    """Why a split of the registers cannot be."""
    groups = choice.consumer_warpgroups
    producer, consumer = REGISTER_SPLIT[groups]
    usual = f"usual with {groups} consumer warpgroup(s): {{producer: {producer}, consumer: {consumer}}}"
    for name, got in (("producer", choice.producer_registers), ("consumer", choice.consumer_registers)):
        if got % 8 or not 24 <= got <= 256:
            legal = "multiples of 8 from 24 to 256"
            return PlanError(f"registers {name}: got {got}; legal: {legal}; {usual}", key="registers")
    if choice.producer_registers > choice.consumer_registers:
        split = f"producer {choice.producer_registers} and consumer {choice.consumer_registers}"
        return PlanError(f"registers: got {split}; legal: no more for the producer; {usual}", key="registers")
    wanted = 128 * (choice.producer_registers + groups * choice.consumer_registers)
    pool = register_pool(groups)
    if wanted > pool:
        return PlanError(f"registers: the split takes {wanted}, and a block owns {pool}; {usual}", key="registers")
    return None


def swizzle_problem(choice: Choice) -> PlanError | None:
    """Why rows cannot be swizzled so."""
    for name, got in (("qk", choice.swizzle_qk), ("v", choice.swizzle_v)):
        if got not in SWIZZLES:
            near = min(SWIZZLES, key=lambda swizzle: abs(swizzle - got))
            legal = ", ".join(map(str, sorted(SWIZZLES)))
            return PlanError(f"swizzle {name}: got {got}; legal: {legal} bytes; nearest: {near}", key="swizzle")
    return None


def _memory(spec: KernelSpec, choice: TileChoice) -> PlanError | None:
    wanted = smem_total(_smem(spec, choice))
    if wanted <= SMEM_LIMIT:
        return None
    return PlanError(
        f"tile {choice.block_m}x{choice.block_n} with {choice.stages} stages, {choice.stages_q} of q, epilogue "
        f"{choice.epilogue} and head dim {spec.head_dim_name[1:]} needs {wanted} bytes of shared memory; "
        f"{SMEM_LIMIT} are available{_nearest(spec, choice)}",
        key="tile",
    )


def _accumulators(spec: KernelSpec, choice: TileChoice) -> PlanError | None:
    wanted = accumulator_registers(choice.block_n, spec.head_dim_v)
    limit = accumulator_limit(choice.consumer_warpgroups, choice.consumer_registers)
    if wanted <= limit:
        return None
    return PlanError(
        f"tile {choice.block_m}x{choice.block_n} with head dim v {spec.head_dim_v} needs {wanted} accumulator registers"
        f" a thread; {limit} are available of {choice.consumer_registers} consumer ones{_nearest(spec, choice)}",
        key="tile",
    )


def _smaller(choice: TileChoice) -> Iterator[TileChoice]:
    """Choices like this one, nearest first: fewer stages, then fewer keys, then fewer warpgroups."""
    least = 2 if choice.overlap else 1
    for groups in range(choice.consumer_warpgroups, 0, -1):
        near = choice
        if groups != choice.consumer_warpgroups:
            producer, consumer = REGISTER_SPLIT[groups]
            near = replace(
                choice, block_m=64 * groups, consumer_warpgroups=groups, producer_registers=producer,
                consumer_registers=consumer, pingpong=choice.pingpong and groups > 1,
            )  # fmt: skip
        for block_n in range(choice.block_n, 0, -BLOCK_N_STEP):
            for stages in range(min(choice.stages, MAX_STAGES), least - 1, -1):
                yield replace(near, stages=stages, block_n=block_n)


def _smem(spec: KernelSpec, choice: TileChoice) -> tuple[SmemRow, ...]:
    return smem_table(
        spec, choice.block_m, choice.block_n, choice.stages, choice.epilogue, choice.swizzles, choice.stages_q
    )


def fits(spec: KernelSpec, choice: TileChoice) -> bool:
    """Whether memory and registers suffice for a choice that is otherwise legal."""
    rows = _smem(spec, choice)
    limit = accumulator_limit(choice.consumer_warpgroups, choice.consumer_registers)
    return smem_total(rows) <= SMEM_LIMIT and accumulator_registers(choice.block_n, spec.head_dim_v) <= limit


def _nearest(spec: KernelSpec, choice: TileChoice) -> str:
    for near in _smaller(choice):
        if fits(spec, near):
            return f"; nearest that fits: tile {{m: {near.block_m}, n: {near.block_n}}}, stages: {near.stages}"
    return ""
