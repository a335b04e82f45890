"""How a backward is built: ``BackwardPlan``.

Its numbers are those of templates/include/flashgen/fa3/backward/smem.cuh, which asserts that the bytes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from .footprint import REGISTER_SPLIT, SMEM_ALIGN, SmemRow, layout, smem_total
from .request import BackwardRequest, Origin, Scheduler
from .spec import KernelSpec
from .swizzled import SwizzledPlan

ROWS_BY_KEYS = 64  # keys of which a warpgroup holds gradients
WARPGROUPS = 2  # consumers
TRANSPOSED_ROWS = 80  # no height of a product: dq is computed transposed, 64 columns a warpgroup
SIDE_THREADS = 256  # of a block of the preprocess and of the postprocess
WARPGROUP = 128  # threads
FLOAT, COUNTER = 4, 8  # bytes
# Consumer registers that are not accumulators: P and dS as operands, addresses, masks. With 4 fewer the compiler was
# seen to spill, or to serialise products. Masked blocks in a loop of their own and a late P leave 12 more.
OVERHEAD, LEAST_OVERHEAD = 44, 32
# Producer and consumer registers of a persistent plan: its four threads step through tiles, which takes more than the
# usual 24. Where the consumers can spare no register the usual split is next.
PERSISTENT_SPLIT = (40, 232)


def block_n_of(split_roles: bool) -> int:
    """Keys of a block: those of one warpgroup where both work on the same ones, else of both."""
    return ROWS_BY_KEYS if split_roles else ROWS_BY_KEYS * WARPGROUPS


def stores_first_of(dq_passes: int, keys_in_order: bool) -> bool:
    """Whether it pays that the first block of keys to add to a block of dq stores it, and nobody zeroes it before.

    In a fixed order the first is known. Else all but the first wait for it: with two passes, for both.
    """
    return keys_in_order or dq_passes == 1


def stages_ds_of(split_roles: bool) -> int:
    """Blocks of dS in use at once: the warpgroups meet at each, and without roles one may write the next by then."""
    return 1 if split_roles else 2


@dataclass(frozen=True)
class BackwardPlan(SwizzledPlan):
    """A backward with every choice made. ``origin`` says who made them and is no part of the identity.

    It is one cubin of three kernels (``entry_points``) that are launched one after the other.
    """

    spec: KernelSpec
    block_m: int
    block_n: int
    stages_q: int
    stages_do: int
    stages_ds: int
    dq_passes: int
    consumer_warpgroups: int
    producer_registers: int
    consumer_registers: int
    split_roles: bool
    keys_in_registers: bool
    keys_in_order: bool
    scheduler: Scheduler
    stores_first: bool
    mask_loops: bool
    swizzle_qk: int
    swizzle_v: int
    origin: Origin = field(default="config", compare=False)

    @property
    def entry_points(self) -> tuple[str, str, str]:
        """The kernels in the order of their launches: preprocess, the main one, postprocess."""
        return f"{self.name}_preprocess", self.name, f"{self.name}_postprocess"

    @property
    def label(self) -> str:
        """The tile in short, with its stages of q and of dout."""
        roles = " roles" if self.split_roles else ""
        return f"{self.block_m}x{self.block_n}x{self.stages_q}/{self.stages_do}{roles}"

    @property
    def persistent(self) -> bool:
        """Whether a thread block takes one block of keys after another, as it gets free."""
        return self.scheduler == Scheduler.dynamic

    @property
    def dq_columns(self) -> tuple[int, int]:
        """Columns of dq that each consumer warpgroup computes: all of 64 rows each, or some, in whole chunks of k.

        Of 80 rows, 64 columns each.
        """
        head_dim, chunk = self.spec.head_dim_qk, self.chunk_qk
        if self.block_m == 2 * ROWS_BY_KEYS:
            return head_dim, head_dim
        if self.block_m == TRANSPOSED_ROWS:
            return ROWS_BY_KEYS, ROWS_BY_KEYS
        half = (head_dim // 2 + chunk // 2) // chunk * chunk
        first = min(half or chunk, head_dim)
        return first, head_dim - first

    @property
    def dq_registers(self) -> tuple[int, int]:
        """Float32 registers of a thread of each consumer warpgroup for its part of dq."""
        rows = TRANSPOSED_ROWS if self.block_m == TRANSPOSED_ROWS else ROWS_BY_KEYS
        first, second = (rows * columns // WARPGROUP for columns in self.dq_columns)
        return first, second

    @property
    def smem(self) -> tuple[SmemRow, ...]:
        """Every member of the main kernel's shared memory, in order."""
        m, n, element = self.block_m, self.block_n, self.spec.dtype.bytes
        return layout(
            ("k", n * self.padded_qk * element, SMEM_ALIGN),
            ("v", n * self.padded_v * element, SMEM_ALIGN),
            ("q", self.stages_q * m * self.padded_qk * element, SMEM_ALIGN),
            ("dout", self.stages_do * m * self.padded_v * element, SMEM_ALIGN),
            ("ds", self.stages_ds * n * m * element, SMEM_ALIGN),
            ("p", n * m * FLOAT if self.split_roles else 4 * FLOAT, 128),
            ("dq", sum(WARPGROUP * count // self.dq_passes for count in self.dq_registers) * FLOAT, 128),
            ("lse", self.stages_q * m * FLOAT, 128),
            ("dpsum", self.stages_do * m * FLOAT, 128),
            # Which block of keys is here and which is next, and where three threads stand; with padding.
            ("tiles", 24 if self.persistent else 0, 8),
            # Of k and v, or full and empty of k, v and the next tile; full and empty of each stage of q and dout; full
            # (for two writers) and empty of dq's parts.
            ("barriers", 8 * ((6 if self.persistent else 1) + 2 * self.stages_q + 2 * self.stages_do + 6), 8),
        )

    @property
    def accumulators(self) -> tuple[tuple[str, int], ...]:
        """Registers of a consumer thread where it holds most, of the fuller of the warpgroups: float32, and k's."""
        scores, dq = self.block_m // 2, self.dq_registers
        dk, dv = ("dk", self.spec.head_dim_qk // 2), ("dv", self.spec.head_dim_v // 2)
        both = (("s", scores), ("dp", scores))
        if self.split_roles:
            moments = [(dv, both[0]), (dv, ("dq", dq[0])), (dk, *both), (dk, ("dq", dq[1]))]
        else:
            held = (dk, dv, *((("k", self.key_registers),) if self.keys_in_registers else ()))
            moments = [(*held, *both), (*held, ("dq", max(dq)))]
        return max(moments, key=lambda held: sum(count for _, count in held))

    @property
    def key_registers(self) -> int:
        """Registers of a consumer thread that its 64 keys take as the operand of a product, in steps of 16 columns."""
        return -(-self.spec.head_dim_qk // 16) * 4

    @property
    def late_p(self) -> bool:
        """Whether P is converted behind dS, so that no operand is held beside both S and dP."""
        return self.mask_loops and self.accumulator_registers > REGISTER_SPLIT[WARPGROUPS][1] - OVERHEAD

    @property
    def accumulator_registers(self) -> int:
        """Registers a consumer thread holds for all of them."""
        return sum(count for _, count in self.accumulators)

    @property
    def request(self) -> BackwardRequest:
        """This plan as a request with every choice explicit: planning it again gives this plan."""
        return BackwardRequest(**{f.name: getattr(self, f.name) for f in fields(BackwardRequest)})

    def m_blocks(self, seqlen_q: int) -> int:
        """Blocks of query rows of one head."""
        return -(-seqlen_q // self.block_m)

    def workspace(self, batch: int, heads_q: int, seqlen_q: int) -> tuple[SmemRow, ...]:
        """What the kernels hand each other in global memory, in order, each part at a multiple of 256 bytes.

        Linear in the query rows: one float32 dq, two numbers a row, and a counter a block; a persistent plan has one
        counter more.
        """
        blocks = batch * heads_q * self.m_blocks(seqlen_q)
        rows = blocks * self.block_m
        return layout(
            ("dq_accum", rows * self.spec.head_dim_qk * FLOAT, 256),
            ("lse_log2", rows * FLOAT, 256),
            ("dpsum", rows * FLOAT, 256),
            ("dq_state", blocks * COUNTER, 256),
            ("next_tile", COUNTER if self.persistent and blocks else 0, 256),
            align=256,
        )

    def workspace_bytes(self, batch: int, heads_q: int, seqlen_q: int) -> int:
        """Bytes of global memory that a call borrows; 0 without a query row."""
        rows = self.workspace(batch, heads_q, seqlen_q)
        return smem_total(rows) if rows else 0
