"""What a plan costs, as data: shared memory, registers, and where the roofline stands. Nothing is printed here."""

from __future__ import annotations

from dataclasses import dataclass

from . import backward_feasibility
from .backward_plan import COUNTER, FLOAT, BackwardPlan
from .cost import MMA_FLOP_PER_CYCLE, exp2_cycles
from .footprint import SMEM_LIMIT, SmemRow, accumulator_limit, accumulator_table, register_pool, round_up
from .plan import AnyPlan, KernelPlan


@dataclass(frozen=True)
class Explanation:
    """The numbers behind a plan. A block is one step of the mainloop: block_m queries by block_n keys."""

    plan: AnyPlan
    smem: tuple[SmemRow, ...]
    smem_bytes: int
    smem_limit: int
    accumulators: tuple[tuple[str, int], ...]  # registers a thread: S, P and O; a backward's fullest moment
    accumulator_registers: int
    accumulator_limit: int
    registers: int  # of the whole block, after the split
    register_pool: int  # that the block owns from its launch on
    flop: int  # useful ones a block: all products with the real head dims
    bytes: int  # that a block moves: K and V come in; in a backward Q and dO with their sums, and dQ goes out
    matrix_cycles: float  # of the tensor cores a block, padding of head dims to 16 included
    exp2_cycles: float  # of the special function units a block
    workspace_bytes_per_row: float = 0  # of global memory that a call borrows for each query row of each head

    @property
    def flop_per_byte(self) -> float:
        """Arithmetic intensity towards L2."""
        return self.flop / self.bytes

    @property
    def bound(self) -> str:
        """Which unit sets the pace if everything else is hidden: ``matrix``, ``exp2`` or ``both``."""
        if self.matrix_cycles == self.exp2_cycles:
            return "both"
        return "matrix" if self.matrix_cycles > self.exp2_cycles else "exp2"

    @property
    def matrix_share(self) -> float:
        """The largest share of the tensor cores' useful peak that this plan can reach."""
        return self.flop / MMA_FLOP_PER_CYCLE / max(self.matrix_cycles, self.exp2_cycles)


def describe(plan: AnyPlan) -> Explanation:
    """The numbers behind a plan."""
    return _forward(plan) if isinstance(plan, KernelPlan) else _backward(plan)


def _backward(plan: BackwardPlan) -> Explanation:
    spec, m, n = plan.spec, plan.block_m, plan.block_n
    qk, v = spec.head_dim_qk, spec.head_dim_v
    # S and dP take the head dims as their inner index; dV, dK and dQ as columns.
    columns = round_up(qk, 16) + round_up(v, 16) + 2 * qk + v
    return Explanation(
        plan=plan,
        smem=plan.smem,
        smem_bytes=plan.smem_bytes,
        smem_limit=SMEM_LIMIT,
        accumulators=plan.accumulators,
        accumulator_registers=plan.accumulator_registers,
        accumulator_limit=backward_feasibility.accumulator_limit(plan),
        registers=128 * (plan.producer_registers + plan.consumer_warpgroups * plan.consumer_registers),
        register_pool=register_pool(plan.consumer_warpgroups),
        flop=2 * m * n * (3 * qk + 2 * v),
        bytes=m * ((qk + v) * spec.dtype.bytes + 2 * FLOAT + qk * FLOAT),
        matrix_cycles=2 * m * n * columns / MMA_FLOP_PER_CYCLE,
        exp2_cycles=exp2_cycles(m, n),
        workspace_bytes_per_row=(qk + 2) * FLOAT + COUNTER / m,
    )


def _forward(plan: KernelPlan) -> Explanation:
    spec, m, n = plan.spec, plan.block_m, plan.block_n
    dims = spec.head_dim_qk + spec.head_dim_v
    return Explanation(
        plan=plan,
        smem=plan.smem,
        smem_bytes=plan.smem_bytes,
        smem_limit=SMEM_LIMIT,
        accumulators=accumulator_table(n, spec.head_dim_v),
        accumulator_registers=plan.accumulator_registers,
        accumulator_limit=accumulator_limit(plan.consumer_warpgroups, plan.consumer_registers),
        registers=128 * (plan.producer_registers + plan.consumer_warpgroups * plan.consumer_registers),
        register_pool=register_pool(plan.consumer_warpgroups),
        flop=2 * m * n * dims,
        bytes=n * dims * spec.dtype.bytes,
        matrix_cycles=2 * m * n * (round_up(spec.head_dim_qk, 16) + spec.head_dim_v) / MMA_FLOP_PER_CYCLE,
        exp2_cycles=exp2_cycles(m, n),
    )
