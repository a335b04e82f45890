"""What plans of both directions derive from the choices they share."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .footprint import SmemRow, padded_head_dims, smem_total
from .spec import KernelSpec


class SwizzledPlan(ABC):
    """Mixed into a plan: its spec, shared memory, swizzles and consumer warpgroups decide these."""

    spec: KernelSpec
    consumer_warpgroups: int
    swizzle_qk: int
    swizzle_v: int

    @property
    @abstractmethod
    def smem(self) -> tuple[SmemRow, ...]:
        """Every member of the block's shared memory, in order."""

    @property
    def name(self) -> str:
        """The spec's canonical name."""
        return self.spec.name

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of the (main) kernel's block, in bytes."""
        return smem_total(self.smem)

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
        """Columns of v, out and its gradient that one TMA copy moves: a row of the swizzle."""
        return self.swizzle_v // self.spec.dtype.bytes
