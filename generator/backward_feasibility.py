"""What fits in the backward: the first reason why a plan cannot be built, with numbers."""

from __future__ import annotations

from dataclasses import replace

from .backward_plan import (
    LEAST_OVERHEAD,
    OVERHEAD,
    TRANSPOSED_ROWS,
    WARPGROUPS,
    BackwardPlan,
    block_n_of,
    stages_ds_of,
)
from .errors import PlanError
from .feasibility import register_problem, swizzle_problem
from .footprint import SMEM_LIMIT, SWIZZLES
from .request import Scheduler

# Registers beside LEAST_OVERHEAD for stepping through several blocks of q and of dout whose rows both lie in narrow
# pieces. With 4 the compiler was seen to spill; with 8 not, nor with one block of either or whole rows.
STEPPING = 8


def accumulator_limit(plan: BackwardPlan) -> int:
    """The most accumulator registers a consumer thread may hold without spilling."""
    lean = plan.mask_loops and not plan.keys_in_registers
    return plan.consumer_registers - (LEAST_OVERHEAD if lean else OVERHEAD)


def rule_problem(plan: BackwardPlan) -> PlanError | None:
    """The first choice that is none of the legal ones, whatever the head dims take."""
    m, n, roles = plan.block_m, plan.block_n, plan.split_roles
    if plan.consumer_warpgroups != WARPGROUPS:
        return PlanError(f"warpgroups: got {plan.consumer_warpgroups}; legal: {WARPGROUPS}", key="warpgroups")
    if m not in ((64,) if roles else (64, TRANSPOSED_ROWS, 128)):
        legal = "64 with split_roles, else 64, 80 or 128"
        return PlanError(f"tile m: got {m}{' with split_roles' if roles else ''}; legal: {legal}", key="tile")
    if n != block_n_of(roles):
        how = "with" if roles else "without"
        legal = f"{block_n_of(True)} with split_roles, {block_n_of(False)} without"
        return PlanError(f"tile n: got {n} {how} split_roles; legal: {legal}", key="tile")
    least_ds = stages_ds_of(roles)
    for key, got, least in (
        ("stages_q", plan.stages_q, 1), ("stages_do", plan.stages_do, 1),
        ("stages_ds", plan.stages_ds, least_ds), ("dq_passes", plan.dq_passes, 1),
    ):  # fmt: skip
        if got < least:
            why = (
                " without split_roles: a warpgroup writes the next one while the other reads this" if least > 1 else ""
            )
            return PlanError(f"{key}: got {got}; legal: {least} or more{why}", key=key)
    if roles and plan.stages_ds > 1:
        return PlanError(f"stages_ds: got {plan.stages_ds} with split_roles; legal: 1", key="stages_ds")
    if not roles and plan.dq_passes > 1:
        return PlanError(f"dq_passes: got {plan.dq_passes} without split_roles; legal: 1", key="dq_passes")
    if roles and plan.keys_in_registers:
        return PlanError("keys_in_registers: got true with split_roles; legal: false", key="keys_in_registers")
    if roles and plan.mask_loops:
        return PlanError("mask_loops: got true with split_roles; legal: false", key="mask_loops")
    if plan.scheduler == Scheduler.static or (roles and plan.persistent):
        how, legal = (" with split_roles", "single") if roles else ("", "single or dynamic")
        return PlanError(f"scheduler: got {plan.scheduler}{how}; legal: {legal}", key="scheduler")
    if plan.spec.deterministic and not plan.keys_in_order:
        return PlanError("keys_in_order: got false with deterministic; legal: true", key="keys_in_order")
    return register_problem(plan) or swizzle_problem(plan) or _transposed_problem(plan) or _dq_problem(plan)


def _transposed_problem(plan: BackwardPlan) -> PlanError | None:
    """Of 80 rows dq is computed transposed, 64 columns of k a warpgroup, and no register is left to ask for masks."""
    if plan.block_m != TRANSPOSED_ROWS:
        return None
    if plan.spec.head_dim_qk != 128:
        got = f"got 80 for head dim qk {plan.spec.head_dim_qk}"
        return PlanError(f"tile m: {got}; legal: 80 with 128, else 64 or 128 query rows", key="tile")
    if plan.chunk_qk != 64:
        return PlanError(f"swizzle qk: got {plan.swizzle_qk} with 80 query rows; legal: 128", key="swizzle")
    if not plan.mask_loops:
        return PlanError("mask_loops: got false with 80 query rows; legal: true", key="mask_loops")
    return None


def _dq_problem(plan: BackwardPlan) -> PlanError | None:
    first, second = plan.dq_columns
    if plan.split_roles and not second:
        return PlanError(
            f"split_roles: both warpgroups compute columns of dq, in chunks of {plan.chunk_qk}, and head dim qk "
            f"{plan.spec.head_dim_qk} has one; legal: a narrower swizzle qk, or split_roles: false",
            key="split_roles",
        )
    if first % (8 * plan.dq_passes) or second % (8 * plan.dq_passes):
        return PlanError(
            f"dq_passes: got {plan.dq_passes} for {first} and {second} columns of dq; legal: what leaves whole 8s",
            key="dq_passes",
        )
    return None


def fit_problem(plan: BackwardPlan) -> PlanError | None:
    """Why a plan of legal choices does not fit: shared memory first, then accumulators."""
    what = f"tile {plan.block_m}x{plan.block_n}{' with split_roles' if plan.split_roles else ''}"
    if plan.smem_bytes > SMEM_LIMIT:
        return PlanError(
            f"{what}, {plan.stages_q} stages of q, {plan.stages_do} of dout, {plan.stages_ds} of ds, {plan.dq_passes} "
            f"passes of dq and head dim {plan.spec.head_dim_name[1:]} needs {plan.smem_bytes} bytes of shared memory; "
            f"{SMEM_LIMIT} are available",
            key="tile",
        )
    limit = accumulator_limit(plan)
    if plan.accumulator_registers > limit:
        without = replace(plan, keys_in_registers=False)  # which may hold more (accumulator_limit)
        key = "keys_in_registers" if without.accumulator_registers <= accumulator_limit(without) else "tile"
        what += " with keys_in_registers" if plan.keys_in_registers else ""
        return PlanError(
            f"{what} and head dim {plan.spec.head_dim_name[1:]} needs {plan.accumulator_registers} accumulator "
            f"registers a thread; {limit} are available of {plan.consumer_registers} consumer ones",
            key=key,
        )
    return None


def may_spill(plan: BackwardPlan) -> bool:
    """Whether a plan that fits leaves fewer registers than its steps were seen to take: to use for want of another."""
    steps = plan.stages_q > 1 and plan.stages_do > 1 and max(plan.swizzle_qk, plan.swizzle_v) < SWIZZLES[0]
    return steps and plan.late_p and plan.accumulator_registers > accumulator_limit(plan) - STEPPING


def problem(plan: BackwardPlan) -> PlanError | None:
    """The first reason why a plan cannot be built; None when it can."""
    return rule_problem(plan) or fit_problem(plan)
