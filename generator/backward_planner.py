"""A backward spec and a request to a ``BackwardPlan``: the first that fits of the choices in order of preference."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from .backward_feasibility import fit_problem, may_spill, problem, rule_problem
from .backward_plan import PERSISTENT_SPLIT, WARPGROUPS, BackwardPlan, block_n_of, stages_ds_of, stores_first_of
from .errors import ConfigError, PlanError
from .footprint import REGISTER_SPLIT, SWIZZLES, natural_swizzle
from .request import BackwardRequest, Origin, Scheduler
from .shipped import solve_with_shipped
from .spec import KernelSpec, Op

AUTO = BackwardRequest()
BY_KEYS_UP_TO = 128  # head dim up to which a warpgroup holds both dk and dv
WIDE_UP_TO = 80  # head dim up to which 128 query rows at once fit in the registers
# (stages of q, stages of dout, passes of dq), from the fastest to what takes least shared memory.
LEANER = ((2, 2, 1), (2, 2, 2), (2, 1, 1), (2, 1, 2), (1, 1, 1), (1, 1, 2))
OPTIONAL = ("keys_in_registers", "mask_loops")  # what may have to go where a plan does not fit

T = TypeVar("T")


def plan_backward(spec: KernelSpec, request: BackwardRequest = AUTO) -> BackwardPlan:
    """The plan of a backward spec: explicit choices first, then the shipped config's, then what fits best.

    Raises PlanError when an explicit choice cannot be built.
    """
    if spec.op is not Op.attention_bwd:
        raise ConfigError(f"{spec.name}: got a spec of {spec.op}; expected one of attention_bwd", key="kernel")
    return solve_with_shipped(spec, request, _solve)


def _solve(spec: KernelSpec, request: BackwardRequest, origin: Origin) -> BackwardPlan:
    every = [replace(made, origin=origin) for made in _candidates(spec, request)]
    if (best := _best(every)) is not None:
        return best
    legal = [made for made in every if rule_problem(made) is None]
    if not legal:
        reason = rule_problem(every[0])
        assert reason is not None
        raise reason
    # The leanest of the tile that was meant tells most: what does not fit even so does not fit at all.
    first = legal[0]
    last = [made for made in legal if (made.split_roles, made.block_m) == (first.split_roles, first.block_m)][-1]
    reason = fit_problem(last)
    assert reason is not None
    raise PlanError(reason.message + _nearest(last), key=reason.key)


def _best(every: Iterable[BackwardPlan]) -> BackwardPlan | None:
    """The first that fits, and of those that may spill only where no other fits."""
    spare = None
    for made in every:
        if problem(made) is None:
            if not may_spill(made):
                return made
            spare = spare or made
    return spare


def _candidates(spec: KernelSpec, request: BackwardRequest) -> Iterator[BackwardPlan]:
    """Every plan that honours the request, those to prefer first."""
    widest, element = max(spec.head_dim_qk, spec.head_dim_v), spec.dtype.bytes
    scheduler = _or(request.scheduler, Scheduler.single)
    in_order = _or(request.keys_in_order, spec.deterministic)
    by_tile = None if request.block_n is None else request.block_n == block_n_of(True)
    for roles in _choices(_or(request.split_roles, by_tile), widest > BY_KEYS_UP_TO, widest <= BY_KEYS_UP_TO):
        wide_first = widest <= WIDE_UP_TO and not roles
        every_keys = (False,) if roles else (True, False)  # in registers where they fit
        for block_m in _choices(request.block_m, *((128, 64) if wide_first else (64,) if roles else (64, 128))):
            natural = natural_swizzle(spec.head_dim_qk, element)
            for swizzle in _choices(request.swizzle_qk, *(width for width in SWIZZLES if width <= natural)):
                for (stages_q, stages_do, usual), keys, (producer, consumer) in itertools.product(
                    LEANER, every_keys, register_splits(scheduler)
                ):
                    passes = _or(request.dq_passes, usual)
                    yield BackwardPlan(
                        spec=spec,
                        block_m=block_m,
                        block_n=_or(request.block_n, block_n_of(roles)),
                        stages_q=_or(request.stages_q, stages_q),
                        stages_do=_or(request.stages_do, stages_do),
                        stages_ds=_or(request.stages_ds, stages_ds_of(roles)),
                        dq_passes=passes,
                        consumer_warpgroups=_or(request.consumer_warpgroups, WARPGROUPS),
                        producer_registers=_or(request.producer_registers, producer),
                        consumer_registers=_or(request.consumer_registers, consumer),
                        split_roles=roles,
                        keys_in_registers=_or(request.keys_in_registers, keys),
                        keys_in_order=in_order,
                        scheduler=scheduler,
                        stores_first=_or(request.stores_first, stores_first_of(passes, in_order)),
                        mask_loops=_or(request.mask_loops, not roles),
                        swizzle_qk=swizzle,
                        swizzle_v=_or(request.swizzle_v, natural_swizzle(spec.head_dim_v, element)),
                    )


def register_splits(scheduler: Scheduler) -> tuple[tuple[int, int], ...]:
    """Producer and consumer registers to choose from, the better ones first."""
    usual = REGISTER_SPLIT[WARPGROUPS]
    return (PERSISTENT_SPLIT, usual) if scheduler == Scheduler.dynamic else (usual,)


def _nearest(refused: BackwardPlan) -> str:
    """The same tile with fewer stages, or else the planner's own choice, where it fits."""
    tile = BackwardRequest(block_m=refused.block_m, block_n=refused.block_n, split_roles=refused.split_roles)
    for request in (tile, AUTO):
        made = _best(_candidates(refused.spec, request))
        if made is not None:
            changed = [f", {key}: false" for key in OPTIONAL if getattr(refused, key) and not getattr(made, key)]
            if refused.persistent and not made.persistent:
                changed.append(", scheduler: single")
            if made.mask_loops and not refused.mask_loops:  # they leave more registers
                changed.append(", mask_loops: true")
            if made.swizzle_qk < refused.swizzle_qk or made.swizzle_v < refused.swizzle_v:  # they pad less
                changed.append(f", swizzle: {{qk: {made.swizzle_qk}, v: {made.swizzle_v}}}")
            return (
                f"; nearest that fits: tile {{m: {made.block_m}, n: {made.block_n}}}, "
                f"split_roles: {str(made.split_roles).lower()}, stages_q: {made.stages_q}, "
                f"stages_do: {made.stages_do}, dq_passes: {made.dq_passes}" + "".join(changed)
            )
    return ""


def _choices(chosen: T | None, *usual: T) -> tuple[T, ...]:
    return usual if chosen is None else (chosen,)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
