"""The choices that a planner has: every tile that honours a request, leaner where shared memory is short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .cost import WIDEST
from .feasibility import BLOCK_N_STEP, MAX_WARPGROUPS, TileChoice, problem
from .footprint import REGISTER_SPLIT, natural_swizzle, usual_swizzle
from .request import Epilogue, PlanRequest
from .spec import KernelSpec, Mask

STAGES = 2
STAGES_Q = 2  # the next tile's Q on its way while this one's is used: what short sequences wait for
USUAL_WARPGROUPS = 2
# Consumer warpgroups -> registers beside O and O converted that a tile for out takes under a causal mask. There first
# rows may lie before the first query and leave from registers, so that both ways are there. With fewer it spilled.
STORING = {1: 64, 2: 60, 3: 34}


def candidates(spec: KernelSpec, request: PlanRequest) -> Iterator[TileChoice]:
    """Every choice that honours the request; one alone when the tile is explicit."""
    stages = _or(request.stages, STAGES)
    overlap = stages >= 2 if request.overlap is None else request.overlap
    every = range(BLOCK_N_STEP, WIDEST + 1, BLOCK_N_STEP)
    widths = every if request.block_n is None else [request.block_n]
    for groups, block_m in _rows(request):
        producer, consumer = REGISTER_SPLIT.get(groups, REGISTER_SPLIT[1])
        for block_n in widths:
            usual = TileChoice(
                block_m=block_m,
                block_n=block_n,
                stages=stages,
                stages_q=_or(request.stages_q, STAGES_Q),
                consumer_warpgroups=groups,
                producer_registers=_or(request.producer_registers, producer),
                consumer_registers=_or(request.consumer_registers, consumer),
                overlap=overlap,
                pingpong=groups >= 2 if request.pingpong is None else request.pingpong,
                epilogue=request.epilogue or _epilogue(spec, groups, _or(request.consumer_registers, consumer)),
                swizzle_qk=_or(request.swizzle_qk, usual_swizzle(spec.head_dim_qk, spec.dtype.bytes)),
                swizzle_v=_or(request.swizzle_v, usual_swizzle(spec.head_dim_v, spec.dtype.bytes)),
            )
            leaner = list(_leaner(spec, request, usual))
            # A refusal is told of the leanest: what does not fit even so does not fit at all.
            yield next((choice for choice in leaner if problem(spec, choice) is None), leaner[-1])


def _epilogue(spec: KernelSpec, groups: int, registers: int) -> Epilogue:
    """The faster of those that leave the compiler the registers it needs."""
    if spec.mask is not Mask.causal:
        return Epilogue.tile
    left = registers - spec.head_dim_v // 2 - spec.head_dim_v // 4
    return Epilogue.tile if left >= STORING.get(groups, STORING[1]) else Epilogue.registers


def _leaner(spec: KernelSpec, request: PlanRequest, usual: TileChoice) -> Iterator[TileChoice]:
    """The usual choice, then those that need less shared memory where the request leaves it open."""
    yield usual
    single = usual if request.stages_q else replace(usual, stages_q=1)
    yield single
    stored = single if request.epilogue else replace(single, epilogue=Epilogue.registers)
    yield stored
    yield replace(
        stored,
        swizzle_qk=_or(request.swizzle_qk, natural_swizzle(spec.head_dim_qk, spec.dtype.bytes)),
        swizzle_v=_or(request.swizzle_v, natural_swizzle(spec.head_dim_v, spec.dtype.bytes)),
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _rows(request: PlanRequest) -> list[tuple[int, int]]:
    """(consumer warpgroups, rows of a tile) that honour the request; each warpgroup owns 64 rows."""
    groups, block_m = request.consumer_warpgroups, request.block_m
    if groups is None and block_m is None:
        return [(count, 64 * count) for count in range(1, MAX_WARPGROUPS + 1)]
    if groups is None:
        assert block_m is not None
        return [(min(max(round(block_m / 64), 1), MAX_WARPGROUPS), block_m)]
    return [(groups, 64 * groups if block_m is None else block_m)]
