"""How a kernel is built: ``plan`` turns a spec and a request into a ``KernelPlan``, or says why it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Literal

from .config import ConfigEntry
from .cost import WIDEST, cost
from .errors import PlanError
from .feasibility import BLOCK_N_STEP, MAX_WARPGROUPS, TileChoice, problem
from .footprint import (
    REGISTER_SPLIT,
    SmemRow,
    accumulator_registers,
    natural_swizzle,
    padded_head_dims,
    smem_table,
    smem_total,
    usual_swizzle,
)
from .request import Epilogue, PlanRequest, Rescale, Scheduler
from .shipped import shipped_request
from .spec import KernelSpec, Mask

__all__ = ["Epilogue", "KernelPlan", "PlanRequest", "Rescale", "Scheduler", "plan", "plan_entry"]

Origin = Literal["config", "shipped", "model"]
AUTO = PlanRequest()
STAGES = 2
USUAL_WARPGROUPS = 2
EARLY_FROM = 224  # head dim of v from which rescaling O is long enough to be worth hiding behind QK


@dataclass(frozen=True)
class KernelPlan:
    """A kernel with every choice made. ``origin`` says who made them and is no part of the identity."""

    spec: KernelSpec
    block_m: int
    block_n: int
    stages: int
    consumer_warpgroups: int
    producer_registers: int
    consumer_registers: int
    scheduler: Scheduler
    overlap: bool
    pingpong: bool
    rescale: Rescale
    epilogue: Epilogue
    swizzle_qk: int
    swizzle_v: int
    origin: Origin = field(default="config", compare=False)

    @property
    def name(self) -> str:
        """The spec's canonical name."""
        return self.spec.name

    @property
    def threads(self) -> int:
        """Threads of a block: one producer warpgroup and the consumers."""
        return (self.consumer_warpgroups + 1) * 128

    @property
    def padded_qk(self) -> int:
        """d_qk as it lies in shared memory."""
        return padded_head_dims(self.spec, (self.swizzle_qk, self.swizzle_v))[0]

    @property
    def padded_v(self) -> int:
        """d_v as it lies in shared memory."""
        return padded_head_dims(self.spec, (self.swizzle_qk, self.swizzle_v))[1]

    @property
    def chunk_qk(self) -> int:
        """Columns of q and k that one TMA copy moves: a row of the swizzle."""
        return self.swizzle_qk // self.spec.dtype.bytes

    @property
    def chunk_v(self) -> int:
        """Columns of v and out that one TMA copy moves: a row of the swizzle."""
        return self.swizzle_v // self.spec.dtype.bytes

    @property
    def smem(self) -> tuple[SmemRow, ...]:
        """Every member of the block's shared memory, in order."""
        return smem_table(
            self.spec, self.block_m, self.block_n, self.stages, self.epilogue, (self.swizzle_qk, self.swizzle_v)
        )

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes."""
        return smem_total(self.smem)

    @property
    def accumulator_registers(self) -> int:
        """Registers a consumer thread holds for S, P and O."""
        return accumulator_registers(self.block_n, self.spec.head_dim_v)

    @property
    def request(self) -> PlanRequest:
        """This plan as a request with every choice explicit: planning it again gives this plan."""
        return PlanRequest(**{f.name: getattr(self, f.name) for f in fields(PlanRequest)})


def plan(spec: KernelSpec, request: PlanRequest = AUTO) -> KernelPlan:
    """The plan of a spec: explicit choices first, then the shipped config of that spec, then the cost model.

    Raises PlanError when an explicit choice cannot be built.
    """
    if not request.names_tile:
        shipped = shipped_request(spec)
        if shipped is not None:
            try:
                return _solve(spec, replace(shipped, **request.explicit), "config" if request.explicit else "shipped")
            except PlanError:
                if not request.explicit:
                    raise
                # The shipped tile does not go with what was asked for; another tile may.
    return _solve(spec, request, "config" if request.explicit else "model")


def plan_entry(entry: ConfigEntry) -> KernelPlan:
    """The plan of one config entry; an error starts with the file and line of the key at fault."""
    try:
        return plan(entry.spec, entry.request)
    except PlanError as error:
        raise error.at(entry.places.get(error.key or "", entry.origin)) from None


def _solve(spec: KernelSpec, request: PlanRequest, origin: Origin) -> KernelPlan:
    candidates = list(_candidates(spec, request))
    feasible = [choice for choice in candidates if problem(spec, choice) is None]
    if not feasible:
        # The smallest of the usual ones tells most: if even that does not fit, nothing does.
        reason = problem(spec, min(candidates, key=lambda c: (c.consumer_warpgroups != USUAL_WARPGROUPS, c.block_n)))
        assert reason is not None
        raise reason
    # Ties go to the wider block, then to the output tile of its own.
    best = min(feasible, key=lambda c: (cost(spec, c), -c.block_n, c.epilogue is not Epilogue.tile))
    scheduler = request.scheduler or (Scheduler.static if spec.mask is Mask.full else Scheduler.dynamic)
    rescale = request.rescale or (Rescale.early if spec.head_dim_v >= EARLY_FROM else Rescale.late)
    return KernelPlan(spec=spec, scheduler=scheduler, rescale=rescale, origin=origin, **asdict(best))


def _candidates(spec: KernelSpec, request: PlanRequest) -> Iterator[TileChoice]:
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
                consumer_warpgroups=groups,
                producer_registers=_or(request.producer_registers, producer),
                consumer_registers=_or(request.consumer_registers, consumer),
                overlap=overlap,
                pingpong=groups >= 2 if request.pingpong is None else request.pingpong,
                epilogue=request.epilogue or Epilogue.tile,
                swizzle_qk=_or(request.swizzle_qk, usual_swizzle(spec.head_dim_qk, spec.dtype.bytes)),
                swizzle_v=_or(request.swizzle_v, usual_swizzle(spec.head_dim_v, spec.dtype.bytes)),
            )
            # A refusal is better told of the usual choice than of one that was not asked for.
            yield next((choice for choice in _leaner(spec, request, usual) if problem(spec, choice) is None), usual)


def _leaner(spec: KernelSpec, request: PlanRequest, usual: TileChoice) -> Iterator[TileChoice]:
    """The usual choice, then those that need less shared memory where the request leaves it open."""
    yield usual
    stored = usual if request.epilogue else replace(usual, epilogue=Epilogue.registers)
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
