"""The shapes that speed is measured on, and the best peer's speed, as a multiple of cuDNN's, where it is known."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from flashgen.generator import KernelSpec

OURS, STEADY = "flashgen", "flashgen deterministic"  # names of implementations
DTYPES = ("bf16", "fp16")  # that are timed

_NAME = re.compile(r"(fwd|bwd) d(\d+)(?:x(\d+))? (\w+) B(\d+) H(\d+)(?:/(\d+))? S(\d+)(?:x(\d+))?(?: (\w+))?")


@dataclass(frozen=True)
class Shape:
    """One problem. ``bar`` is the best peer's speed over cuDNN's, both in one run on an H200; None where unmeasured.

    ``direction`` is ``fwd``, or ``bwd`` for the gradients of q, k and v alone, without the forward before them.
    """

    mask: str
    head_dim: int
    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    bar: float | None = None
    head_dim_v: int | None = None
    dtype: str = "bf16"
    direction: str = "fwd"

    @property
    def d_v(self) -> int:
        """Head dim of v and out."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def dims(self) -> str:
        """Such as ``d128``, or ``d192x128``."""
        return f"d{self.head_dim}" + ("" if self.d_v == self.head_dim else f"x{self.d_v}")

    @property
    def heads(self) -> str:
        """Such as ``16``, or ``32/8``."""
        return f"{self.heads_q}" + ("" if self.heads_kv == self.heads_q else f"/{self.heads_kv}")

    @property
    def length(self) -> str:
        """Such as ``S8192``, or ``S2048x32768``."""
        return f"S{self.seqlen_q}" + ("" if self.seqlen_k == self.seqlen_q else f"x{self.seqlen_k}")

    @property
    def name(self) -> str:
        """Such as ``fwd d128 causal B2 H32/8 S8192``, or ``bwd`` and so on."""
        dtype = "" if self.dtype == "bf16" else f" {self.dtype}"
        return f"{self.direction} {self.dims} {self.mask} B{self.batch} H{self.heads} {self.length}{dtype}"

    @classmethod
    def from_name(cls, name: str) -> Shape:
        """The shape of a name, without its bar; ValueError when it is none."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"got {name!r}; expected a shape such as {GRID[0].name!r}")
        direction, head_dim, head_dim_v, mask, batch, heads_q, heads_kv, seqlen_q, seqlen_k, dtype = found.groups()
        return cls(
            mask, int(head_dim), int(batch), int(heads_q), int(heads_kv or heads_q), int(seqlen_q),
            int(seqlen_k or seqlen_q), None, int(head_dim_v) if head_dim_v else None, dtype or "bf16",
            direction,
        )  # fmt: skip

    def in_dtype(self, dtype: str) -> Shape:
        """The same problem in that dtype; bars are known of the grid's own, bf16, alone."""
        return self if dtype == self.dtype else replace(self, dtype=dtype, bar=None)

    @property
    def flop(self) -> float:
        """Floating point operations, halved for causal. A backward has five products: P again, dP, dV, dQ and dK."""
        scores = self.batch * self.heads_q * self.seqlen_q * self.seqlen_k / (2 if self.mask == "causal" else 1)
        columns = self.head_dim + self.d_v if self.direction == "fwd" else 3 * self.head_dim + 2 * self.d_v
        return 2 * scores * columns

    def spec(self, deterministic: bool = False) -> KernelSpec:
        """What the kernel computes that serves it; ``deterministic`` is for a backward."""
        spec = KernelSpec.forward(head_dim=self.head_dim, head_dim_v=self.d_v, dtype=self.dtype, mask=self.mask)
        return spec if self.direction == "fwd" else spec.backward_of(deterministic)


# fmt: off
# mask, head dim, batch, query heads, key heads, query length, key length, bar, head dim of v where it is another
GRID: tuple[Shape, ...] = tuple(Shape(*row) for row in (
    ("full", 64, 32, 32, 32, 512, 512, 1.000),
    ("full", 64, 16, 32, 32, 1024, 1024, 1.000),
    ("full", 64, 8, 32, 32, 2048, 2048, 1.083),
    ("full", 64, 4, 32, 32, 4096, 4096, 1.133),
    ("full", 64, 2, 32, 32, 8192, 8192, 1.211),
    ("full", 64, 1, 32, 32, 16384, 16384, 1.228),
    ("causal", 64, 32, 32, 32, 512, 512, 1.000),
    ("causal", 64, 16, 32, 32, 1024, 1024, 1.000),
    ("causal", 64, 8, 32, 32, 2048, 2048, 1.068),
    ("causal", 64, 4, 32, 32, 4096, 4096, 1.118),
    ("causal", 64, 2, 32, 32, 8192, 8192, 1.202),
    ("causal", 64, 1, 32, 32, 16384, 16384, 1.225),
    ("full", 128, 32, 16, 16, 512, 512, 1.001),
    ("full", 128, 16, 16, 16, 1024, 1024, 1.042),
    ("full", 128, 8, 16, 16, 2048, 2048, 1.063),
    ("full", 128, 4, 16, 16, 4096, 4096, 1.076),
    ("full", 128, 2, 16, 16, 8192, 8192, 1.107),
    ("full", 128, 1, 16, 16, 16384, 16384, 1.118),
    ("causal", 128, 32, 16, 16, 512, 512, 1.000),
    ("causal", 128, 16, 16, 16, 1024, 1024, 1.131),
    ("causal", 128, 8, 16, 16, 2048, 2048, 1.179),
    ("causal", 128, 4, 16, 16, 4096, 4096, 1.195),
    ("causal", 128, 2, 16, 16, 8192, 8192, 1.205),
    ("causal", 128, 1, 16, 16, 16384, 16384, 1.267),
    ("full", 256, 32, 8, 8, 512, 512, 1.022),
    ("full", 256, 16, 8, 8, 1024, 1024, 1.082),
    ("full", 256, 8, 8, 8, 2048, 2048, 1.083),
    ("full", 256, 4, 8, 8, 4096, 4096, 1.077),
    ("full", 256, 2, 8, 8, 8192, 8192, 1.106),
    ("full", 256, 1, 8, 8, 16384, 16384, 1.151),
    ("causal", 256, 32, 8, 8, 512, 512, 1.004),
    ("causal", 256, 16, 8, 8, 1024, 1024, 1.085),
    ("causal", 256, 8, 8, 8, 2048, 2048, 1.147),
    ("causal", 256, 4, 8, 8, 4096, 4096, 1.198),
    ("causal", 256, 2, 8, 8, 8192, 8192, 1.235),
    ("causal", 256, 1, 8, 8, 16384, 16384, 1.281),
    ("full", 72, 4, 16, 16, 4096, 4096, 1.201),
    ("causal", 72, 4, 16, 16, 4096, 4096, 1.258),
    ("full", 80, 4, 16, 16, 4096, 4096, 1.288),
    ("causal", 80, 4, 16, 16, 4096, 4096, 1.335),
    ("full", 96, 4, 16, 16, 4096, 4096, 1.223),
    ("causal", 96, 4, 16, 16, 4096, 4096, 1.316),
    ("full", 112, 4, 16, 16, 4096, 4096, 1.071),
    ("causal", 112, 4, 16, 16, 4096, 4096, 1.224),
    ("full", 160, 4, 16, 16, 4096, 4096, 1.202),
    ("causal", 160, 4, 16, 16, 4096, 4096, 1.227),
    ("full", 192, 4, 16, 16, 4096, 4096, 1.114),
    ("causal", 192, 4, 16, 16, 4096, 4096, 1.168),
    ("full", 192, 4, 16, 16, 4096, 4096, None, 128),
    ("causal", 192, 4, 16, 16, 4096, 4096, None, 128),
    ("causal", 128, 2, 32, 8, 8192, 8192, 1.254),
    ("full", 128, 1, 32, 8, 2048, 32768, 1.114),
    ("causal", 128, 1, 16, 16, 65536, 65536, 1.332),
))
# The same columns.
BACKWARD_GRID: tuple[Shape, ...] = tuple(Shape(*row, direction="bwd") for row in (
    ("full", 64, 32, 32, 32, 512, 512, 1.198),
    ("full", 64, 16, 32, 32, 1024, 1024, 1.187),
    ("full", 64, 8, 32, 32, 2048, 2048, 1.197),
    ("full", 64, 4, 32, 32, 4096, 4096, 1.214),
    ("full", 64, 2, 32, 32, 8192, 8192, 1.232),
    ("full", 64, 1, 32, 32, 16384, 16384, 1.236),
    ("causal", 64, 32, 32, 32, 512, 512, 1.278),
    ("causal", 64, 16, 32, 32, 1024, 1024, 1.288),
    ("causal", 64, 8, 32, 32, 2048, 2048, 1.283),
    ("causal", 64, 4, 32, 32, 4096, 4096, 1.317),
    ("causal", 64, 2, 32, 32, 8192, 8192, 1.354),
    ("causal", 64, 1, 32, 32, 16384, 16384, 1.371),
    ("full", 128, 32, 16, 16, 512, 512, 1.061),
    ("full", 128, 16, 16, 16, 1024, 1024, 1.113),
    ("full", 128, 8, 16, 16, 2048, 2048, 1.114),
    ("full", 128, 4, 16, 16, 4096, 4096, 1.133),
    ("full", 128, 2, 16, 16, 8192, 8192, 1.166),
    ("full", 128, 1, 16, 16, 16384, 16384, 1.191),
    ("causal", 128, 32, 16, 16, 512, 512, 1.142),
    ("causal", 128, 16, 16, 16, 1024, 1024, 1.147),
    ("causal", 128, 8, 16, 16, 2048, 2048, 1.160),
    ("causal", 128, 4, 16, 16, 4096, 4096, 1.177),
    ("causal", 128, 2, 16, 16, 8192, 8192, 1.204),
    ("causal", 128, 1, 16, 16, 16384, 16384, 1.204),
    ("full", 256, 32, 8, 8, 512, 512, 1.215),
    ("full", 256, 16, 8, 8, 1024, 1024, 1.255),
    ("full", 256, 8, 8, 8, 2048, 2048, 1.198),
    ("full", 256, 4, 8, 8, 4096, 4096, 1.137),
    ("full", 256, 2, 8, 8, 8192, 8192, 1.302),
    ("full", 256, 1, 8, 8, 16384, 16384, 1.338),
    ("causal", 256, 32, 8, 8, 512, 512, 1.119),
    ("causal", 256, 16, 8, 8, 1024, 1024, 1.160),
    ("causal", 256, 8, 8, 8, 2048, 2048, 1.193),
    ("causal", 256, 4, 8, 8, 4096, 4096, 1.193),
    ("causal", 256, 2, 8, 8, 8192, 8192, 1.124),
    ("causal", 256, 1, 8, 8, 16384, 16384, 1.214),
    ("full", 72, 4, 16, 16, 4096, 4096, 1.390),
    ("causal", 72, 4, 16, 16, 4096, 4096, 1.481),
    ("full", 80, 4, 16, 16, 4096, 4096, 1.398),
    ("causal", 80, 4, 16, 16, 4096, 4096, 1.458),
    ("full", 96, 4, 16, 16, 4096, 4096, 1.315),
    ("causal", 96, 4, 16, 16, 4096, 4096, 1.357),
    ("full", 112, 4, 16, 16, 4096, 4096, 1.095),
    ("causal", 112, 4, 16, 16, 4096, 4096, 1.177),
    ("full", 160, 4, 16, 16, 4096, 4096, 1.606),
    ("causal", 160, 4, 16, 16, 4096, 4096, 1.572),
    ("full", 192, 4, 16, 16, 4096, 4096, 1.593),
    ("causal", 192, 4, 16, 16, 4096, 4096, 1.558),
))
# fmt: on
