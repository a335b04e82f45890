"""What plans of both directions derive from their swizzles and warpgroups."""

from __future__ import annotations

from .footprint import padded_head_dims
from .spec import KernelSpec


class SwizzledPlan:
    """Mixed into a plan: its spec, swizzles and consumer warpgroups decide these."""

    spec: KernelSpec
    consumer_warpgroups: int
    swizzle_qk: int
    swizzle_v: int

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
