"""A cost model that ranks feasible tiles for a spec that nobody has tuned. Deterministic, and no more than that.

It adds up cycles of one SM for a nominal problem (4096 queries and keys), from what the hardware is known to do:
4096 FLOP a cycle in the tensor cores, 16 exp2 a cycle, 128 bytes of shared memory a cycle, 128 FP32 operations a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping

from .feasibility import TileChoice
from .footprint import accumulator_limit, accumulator_registers, round_up, usual_swizzle
from .spec import KernelSpec

MMA_FLOP_PER_CYCLE = 4096
EXP2_PER_CYCLE = 16
FP32_PER_CYCLE = 128
SMEM_BYTES_PER_CYCLE = 128
SEQLEN = 4096

# Fitted by eye to measured tiles, not derived: they only have to rank.
SOFTMAX_OPERATIONS = 4  # FP32 operations a score beside exp2: scale, max, sum, convert
BLOCK_CYCLES = 80  # barriers and pipeline fill of one step of the mainloop
TILE_CYCLES = 1200  # first load, row sums, store
WIDEST = 176  # keys of a block: wider ones were never measured to run without spilling
MANY_GROUPS_BELOW = 112  # head dim from which 2 consumer warpgroups beat 3, whose registers are then too few
OTHER_GROUPS = 1.15  # what the other number of warpgroups costs
# Consumer warpgroups -> accumulator registers below the limit from which the compiler was seen to spill now and then.
SPARE = {1: 44, 2: 44, 3: 8}
# The same for who compiles a tile before believing in it: from here on more spill than do not.
SPARE_IF_COMPILED = {1: 24, 2: 24, 3: 0}
TIGHT = 2.0  # what a tile costs that may spill
NARROW_COPY = 1.2  # what copying rows in narrower pieces than usual costs
HIDDEN = {1: 0.5, 2: 0.85, 3: 0.85}  # consumer warpgroups -> share of the lesser pipe's time that the greater one hides


def matrix_cycles(spec: KernelSpec, block_m: int, block_n: int) -> float:
    """Cycles of both products of one block, each bound by the tensor cores or by the operands' shared memory reads."""
    qk = round_up(spec.head_dim_qk, 16)  # products go in steps of 16, whatever the swizzle pads rows to
    element = spec.dtype.bytes
    groups = block_m // 64

    def product(n: int, k: int, a_from_smem: bool) -> float:
        flop = 2 * 64 * n * k / MMA_FLOP_PER_CYCLE
        read = (n * k + (64 * k if a_from_smem else 0)) * element / SMEM_BYTES_PER_CYCLE
        return groups * max(flop, read)

    return product(block_n, qk, True) + product(spec.head_dim_v, block_n, False)


def exp2_cycles(block_m: int, block_n: int) -> float:
    """Cycles of one block's exponentials."""
    return block_m * block_n / EXP2_PER_CYCLE


def softmax_cycles(spec: KernelSpec, block_m: int, block_n: int) -> float:
    """Cycles of one block outside the tensor cores: exp2, its arithmetic, and the rescaling of O."""
    arithmetic = block_m * (SOFTMAX_OPERATIONS * block_n + spec.head_dim_v) / FP32_PER_CYCLE
    return max(exp2_cycles(block_m, block_n), arithmetic) + 0.25 * min(exp2_cycles(block_m, block_n), arithmetic)


def cost(spec: KernelSpec, choice: TileChoice, spare: Mapping[int, int] = SPARE) -> float:
    """Estimated cycles a query row of the nominal problem takes; less is better.

    A tile that may spill is charged for it: one whose accumulators leave fewer than ``spare`` registers, by the number
    of consumer warpgroups.
    """
    m, n = choice.block_m, choice.block_n
    matrix, softmax = matrix_cycles(spec, m, n), softmax_cycles(spec, m, n)
    hidden = HIDDEN[choice.consumer_warpgroups] if choice.overlap or choice.pingpong else 0.0
    block = max(matrix, softmax) + (1 - hidden) * min(matrix, softmax) + BLOCK_CYCLES
    blocks = SEQLEN / n
    groups = 3 if max(spec.head_dim_qk, spec.head_dim_v) < MANY_GROUPS_BELOW else 2
    penalty = 1.0 if choice.consumer_warpgroups == groups else OTHER_GROUPS
    usual = (usual_swizzle(d, spec.dtype.bytes) for d in (spec.head_dim_qk, spec.head_dim_v))
    if any(got < wide for got, wide in zip(choice.swizzles, usual, strict=True)):
        penalty *= NARROW_COPY
    room = accumulator_limit(choice.consumer_warpgroups, choice.consumer_registers) - spare[choice.consumer_warpgroups]
    penalty *= TIGHT if accumulator_registers(n, spec.head_dim_v) > room else 1.0
    return penalty * (TILE_CYCLES + matrix + blocks * block) / m
