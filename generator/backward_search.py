"""What a tuner tries of a backward, in order: every tile once, then all else that the best may have. Pure.

Everything is a request with each choice explicit, and feasible: planning it gives the plan that is meant.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace

from .backward_feasibility import may_spill, problem
from .backward_plan import TRANSPOSED_ROWS, WARPGROUPS, BackwardPlan, block_n_of, stages_ds_of, stores_first_of
from .backward_planner import LEANER, register_splits
from .footprint import REGISTER_SPLIT, SWIZZLES, natural_swizzle
from .request import BackwardRequest, Scheduler
from .spec import KernelSpec

TILES = ((False, 128), (False, TRANSPOSED_ROWS), (False, 64), (True, 64))  # (split roles, query rows at once)
STAGES = range(1, 4)  # blocks of q and of dout: the copies of a fourth would wait for nothing but room
PASSES = (1, 2, 4)  # of dq with split roles; without, a warpgroup hands over its part at once


def tiles(spec: KernelSpec) -> list[BackwardRequest]:
    """A plan of every feasible tile and swizzle, with the stages that the planner prefers; usual swizzles first."""
    found: list[BackwardRequest] = []
    natural_qk, natural_v = _natural(spec)
    for base in sorted(_bases(spec), key=lambda b: (b.swizzle_qk != natural_qk) + (b.swizzle_v != natural_v)):
        family = _family(base)
        if family:
            found.append(min(family, key=_preference).request)
    return found


def siblings(base: BackwardPlan) -> list[BackwardRequest]:
    """All others that are feasible with the plan's tile and swizzles, the nearest to it first."""
    others = [made for made in _family(base) if made != base]
    return [made.request for made in sorted(others, key=lambda made: _distance(base, made))]


def _bases(spec: KernelSpec) -> Iterator[BackwardPlan]:
    """Every tile with every swizzle that may matter, one stage of each; not all are feasible."""
    producer, consumer = REGISTER_SPLIT[WARPGROUPS]
    natural_qk, natural_v = _natural(spec)
    for roles, block_m in TILES:
        divisions: set[tuple[int, int]] = set()
        for swizzle in SWIZZLES:
            base = BackwardPlan(
                spec=spec,
                block_m=block_m,
                block_n=block_n_of(roles),
                stages_q=1,
                stages_do=1,
                stages_ds=stages_ds_of(roles),
                dq_passes=1,
                consumer_warpgroups=WARPGROUPS,
                producer_registers=producer,
                consumer_registers=consumer,
                split_roles=roles,
                keys_in_registers=False,
                keys_in_order=spec.deterministic,
                scheduler=Scheduler.single,
                stores_first=False,
                mask_loops=not roles,
                swizzle_qk=swizzle,
                swizzle_v=natural_v,
            )
            # Narrower than natural pads no less and copies in smaller pieces, but may divide dq's columns more evenly.
            if swizzle >= natural_qk or base.dq_columns not in divisions:
                yield from (replace(base, swizzle_v=other) for other in SWIZZLES if other >= natural_v)
            divisions.add(base.dq_columns)


def _natural(spec: KernelSpec) -> tuple[int, int]:
    element = spec.dtype.bytes
    return natural_swizzle(spec.head_dim_qk, element), natural_swizzle(spec.head_dim_v, element)


def _family(base: BackwardPlan) -> list[BackwardPlan]:
    """The feasible plans of a tile, its swizzles and its registers."""
    roles = base.split_roles
    stages = itertools.product(STAGES, STAGES, PASSES if roles else PASSES[:1])
    orders = {True, base.spec.deterministic}
    schedulers = (Scheduler.single,) if roles else (Scheduler.single, Scheduler.dynamic)
    every = (
        replace(
            base, stages_q=stages_q, stages_do=stages_do, stages_ds=stages_ds_of(roles), dq_passes=passes,
            keys_in_registers=keys, keys_in_order=in_order, stores_first=stores, mask_loops=loops, scheduler=scheduler,
        )
        for scheduler, (stages_q, stages_do, passes), in_order, (keys, stores, loops) in itertools.product(
            schedulers, stages, sorted(orders), itertools.product((True, False), repeat=3)
        )
    )  # fmt: skip
    return [made for asked in every if (made := _with_registers(asked, base)) is not None]


def _with_registers(plan: BackwardPlan, base: BackwardPlan) -> BackwardPlan | None:
    """With the base's registers, or the first split that another scheduler likes and that fits; None if none does."""
    own = ((base.producer_registers, base.consumer_registers),)
    for producer, consumer in own if plan.scheduler == base.scheduler else register_splits(plan.scheduler):
        made = replace(plan, producer_registers=producer, consumer_registers=consumer)
        if problem(made) is None:
            return made
    return None


def _preference(made: BackwardPlan) -> tuple[bool, int, bool, bool, bool, bool, bool]:
    choice = (made.stages_q, made.stages_do, made.dq_passes)
    stores = stores_first_of(made.dq_passes, made.keys_in_order)
    leaner = LEANER.index(choice) if choice in LEANER else len(LEANER)
    return (
        may_spill(made),
        leaner,
        made.persistent,
        made.keys_in_order != made.spec.deterministic,
        not made.keys_in_registers,
        made.stores_first != stores,
        made.mask_loops == made.split_roles,
    )


def _distance(base: BackwardPlan, other: BackwardPlan) -> int:
    """How many choices differ."""
    return sum(getattr(base, f.name) != getattr(other, f.name) for f in fields(BackwardRequest))
