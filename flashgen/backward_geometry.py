"""How a backward's problem is cut into thread blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.generator import Mask
from flashgen.generator.backward_plan import BackwardPlan
from flashgen.launch import L2_BYTES, LOG2_E, check_index_limit, evenly, heads_per_group

HEADS_IN_ORDER, FEW_HEADS_IN_ORDER = 16, 8  # of a group, at most: what was fastest on an H200 (docs/performance.md)


@dataclass(frozen=True)
class BackwardGeometry:
    """The numbers of BackwardParams, and the grids in blocks."""

    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    m_blocks: int
    n_blocks: int
    heads_per_group: int
    scale: float
    scale_log2: float
    grid: int  # blocks of the main kernel

    @property
    def row_blocks(self) -> int:
        """Blocks of the preprocess and the postprocess."""
        return self.m_blocks * self.heads_q * self.batch


def backward_geometry(
    plan: BackwardPlan, q: Sequence[int], k: Sequence[int], softmax_scale: float, processors: int
) -> BackwardGeometry:
    """How a problem of these shapes runs on a GPU with that many multiprocessors."""
    batch, seqlen_q, heads_q, head_dim_qk = q
    seqlen_k, heads_kv = k[1], k[2]
    m_blocks, n_blocks = plan.m_blocks(seqlen_q), -(-seqlen_k // plan.block_n)
    key_blocks = n_blocks * batch * heads_kv
    check_index_limit(max(m_blocks * batch * heads_q, key_blocks), "tiles of queries or keys", seqlen_q, seqlen_k)
    element = plan.spec.dtype.bytes
    # What a block of keys goes through: Q and dO, and the accumulator of dQ.
    bytes_per_row = (head_dim_qk + plan.spec.head_dim_v) * element + head_dim_qk * 4
    bytes_per_head = heads_q // heads_kv * seqlen_q * bytes_per_row
    if plan.keys_in_order:
        heads = _heads_in_order(plan, batch * heads_kv, bytes_per_head)
    else:
        heads = heads_per_group(batch * heads_kv, 1, bytes_per_head, beyond=2 if plan.split_roles else 4)
    return BackwardGeometry(
        batch, heads_q, heads_kv, seqlen_q, seqlen_k, m_blocks, n_blocks, heads, softmax_scale, softmax_scale * LOG2_E,
        min(processors, key_blocks) if plan.persistent else key_blocks,
    )  # fmt: skip


def _heads_in_order(plan: BackwardPlan, heads: int, bytes_per_head: int) -> int:
    """Heads of a group when dq is added in the order of the keys.

    Of few heads many blocks of keys run at once, each waiting for the one before; of many, those that run lie far
    apart, and what they share leaves L2. More than stay there come from global memory again and again: only with equal
    blocks of 128 keys was that the lesser evil.
    """
    causal, roles, in_l2 = plan.spec.mask == Mask.causal, plan.split_roles, max(1, L2_BYTES // bytes_per_head)
    most = FEW_HEADS_IN_ORDER if causal and not roles else HEADS_IN_ORDER
    if causal and roles:  # what three quarters of L2 hold, or all of L2 up to 4
        room = max(L2_BYTES * 3 // 4 // bytes_per_head, min(4, in_l2))
    else:
        room = in_l2 if causal or roles else most
    return evenly(heads, min(room, most, heads))
