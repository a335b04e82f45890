"""The shapes that speed is measured on, and the best known peer's speed on each as a multiple of cuDNN's."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"fwd d(\d+)(?:x(\d+))? (\w+) B(\d+) H(\d+)(?:/(\d+))? S(\d+)(?:x(\d+))?(?: (\w+))?")


@dataclass(frozen=True)
class Shape:
    """One problem. ``bar`` is the best peer's speed over cuDNN's, both in one run on an H200; None where unmeasured."""

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

    @property
    def d_v(self) -> int:
        """Head dim of v and out."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def name(self) -> str:
        """Such as ``fwd d128 causal B2 H32/8 S8192``."""
        heads = f"H{self.heads_q}" + ("" if self.heads_kv == self.heads_q else f"/{self.heads_kv}")
        length = f"S{self.seqlen_q}" + ("" if self.seqlen_k == self.seqlen_q else f"x{self.seqlen_k}")
        dims = f"d{self.head_dim}" + ("" if self.d_v == self.head_dim else f"x{self.d_v}")
        dtype = "" if self.dtype == "bf16" else f" {self.dtype}"
        return f"fwd {dims} {self.mask} B{self.batch} {heads} {length}{dtype}"

    @classmethod
    def from_name(cls, name: str) -> Shape:
        """The shape of a name, without its bar; ValueError when it is none."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"got {name!r}; expected a shape such as {GRID[0].name!r}")
        head_dim, head_dim_v, mask, batch, heads_q, heads_kv, seqlen_q, seqlen_k, dtype = found.groups()
        return cls(
            mask, int(head_dim), int(batch), int(heads_q), int(heads_kv or heads_q), int(seqlen_q),
            int(seqlen_k or seqlen_q), None, int(head_dim_v) if head_dim_v else None, dtype or "bf16",
        )  # fmt: skip

    @property
    def flop(self) -> float:
        """Floating point operations, halved for causal."""
        scores = self.batch * self.heads_q * self.seqlen_q * self.seqlen_k / (2 if self.mask == "causal" else 1)
        return 2 * scores * (self.head_dim + self.d_v)


# fmt: off
# mask, head dim, batch, query heads, key heads, query length, key length, bar
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
    ("causal", 128, 2, 32, 8, 8192, 8192, 1.254),
    ("full", 128, 1, 32, 8, 2048, 32768, 1.114),
    ("causal", 128, 1, 16, 16, 65536, 65536, 1.332),
))
# fmt: on
