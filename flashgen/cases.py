"""A short and sharp list of problems for one kernel: what its tile makes dangerous, and what callers do to strides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgen.generator import AnyPlan, KernelPlan
from flashgen.testing import make_inputs

NAN = float("nan")


@dataclass(frozen=True)
class Case:
    """One problem: sizes, kind of numbers, and how q, k and v lie in memory."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_kv: int
    kind: str = "normal"
    layout: str = "dense"
    softmax_scale: float | None = None

    def __str__(self) -> str:
        scale = "" if self.softmax_scale is None else f" scale {self.softmax_scale}"
        return (
            f"batch {self.batch}, seqlen {self.seqlen_q} x {self.seqlen_k}, heads {self.heads_q}/{self.heads_kv}, "
            f"{self.kind}, {self.layout}{scale}"
        )

    def inputs(self, plan: AnyPlan, device: torch.device, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, laid out as the case says."""
        spec = plan.spec
        q, k, v = make_inputs(
            self.kind,
            (self.batch, self.seqlen_q, self.heads_q, spec.head_dim_qk),
            (self.batch, self.seqlen_k, self.heads_kv, spec.head_dim_qk),
            (self.batch, self.seqlen_k, self.heads_kv, spec.head_dim_v),
            dtype={"bf16": torch.bfloat16, "fp16": torch.float16}[spec.dtype],
            device=device,
            seed=seed,
            softmax_scale=self.softmax_scale,
        )
        return LAYOUTS[self.layout](q, k, v)


def cases(plan: KernelPlan) -> list[Case]:
    """What one kernel is verified on."""
    m, n = plan.block_m, plan.block_n
    return [
        Case(1, 1, 1, 1, 1),
        Case(2, 3, n - 1, 2, 1, layout="surrounded"),
        Case(1, m - 1, n, 3, 3, layout="transposed"),
        Case(1, m, n + 1, 3, 1, "wide"),
        Case(2, m + 1, 3 * n + 5, 4, 2, "outliers", "surrounded"),
        Case(1, 2 * m + 3, 2 * n, 2, 2, "logits_-100", "surrounded"),
        Case(1, 63, 127, 8, 1, "logits_-10000", "surrounded"),
        Case(1, 129, 4 * n + 7, 6, 2, "logits_-100", "transposed"),
        Case(2, 2 * m + 3, n // 2, 2, 1, layout="surrounded"),  # causal: the first rows see no key
        Case(1, 3 * m + 9, 1, 2, 2),
        Case(2, 203, 799, 4, 4, "wide", "packed"),
        Case(3, 113, 239, 8, 1, layout="expanded_heads"),
        Case(4, m + 1, n + 1, 4, 2, layout="expanded_batch"),
        Case(1, 130, 200, 2, 1, layout="misaligned"),
        Case(1, 65, 129, 2, 2, layout="strided_last"),
        Case(1, 127, 65, 2, 1, layout="odd_rows"),
        Case(3, 4 * m + 1, 2 * n + 1, 16, 4, softmax_scale=0.25),  # more tiles than multiprocessors
        Case(9, 1, 1025, 8, 2, "outliers"),
        Case(1, 1025, 1025, 3, 1, "wide", "surrounded"),
        Case(2, 1023, 1024, 2, 2),
        Case(1, m + 9, 9 * n + 7, 2, 1, "rising", "surrounded"),
        Case(1, 1025, 1025, 2, 1, "steep"),
        Case(2, 4 * n + m, 4 * n - 3, 2, 2, "steep", "surrounded"),  # causal: among rows that see no key
    ]


def _each(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    return lambda q, k, v: (change(q), change(k), change(v))


def _surrounded(x: Tensor) -> Tensor:
    """A slice of a larger tensor of NaN: what lies around a sequence must change nothing."""
    batch, seqlen, heads, head_dim = x.shape
    room = x.new_full((batch, seqlen + 300, heads + 1, head_dim), NAN)
    view = room[:, 7 : 7 + seqlen, :heads]
    view.copy_(x)
    return view


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _packed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slices of one tensor where they fit in one (as from a single projection), else of two."""
    if q.shape[1] == k.shape[1] and q.shape[3] == v.shape[3]:
        q, k, v = torch.cat((q, k, v), dim=2).split((q.shape[2], k.shape[2], v.shape[2]), dim=2)
        return q, k, v
    k, v = torch.cat((k, v), dim=3).split((k.shape[3], v.shape[3]), dim=3)
    return q, k, v


def _expanded(dim: int) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    def change(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = q.shape[2] if dim == 2 else k.shape[dim]
        shape = [-1, -1, -1, -1]
        shape[dim] = size
        return q, k.narrow(dim, 0, 1).expand(shape), v.narrow(dim, 0, 1).expand(shape)

    return change


def _misaligned(x: Tensor) -> Tensor:
    """Two bytes past an aligned address."""
    room = x.new_empty(x.numel() + 1)[1:].view(x.shape)
    return room.copy_(x)


def _strided_last(x: Tensor) -> Tensor:
    return x.new_full((*x.shape, 2), NAN)[..., 0].copy_(x)


def _odd_rows(x: Tensor) -> Tensor:
    """Rows that begin at no multiple of 16 bytes."""
    return x.new_full((*x.shape[:3], x.shape[3] + 3), NAN)[..., : x.shape[3]].copy_(x)


LAYOUTS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "dense": _each(lambda x: x),
    "surrounded": _each(_surrounded),
    "transposed": _each(_transposed),
    "packed": _packed,
    "expanded_heads": _expanded(2),
    "expanded_batch": _expanded(0),
    "misaligned": _each(_misaligned),
    "strided_last": _each(_strided_last),
    "odd_rows": _each(_odd_rows),
}
