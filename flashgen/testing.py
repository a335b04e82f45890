"""What right means: the reference, the same computation in working precision, and the rule that compares with both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

INPUT_KINDS = ("normal", "wide", "outliers", "rising", "steep", "logits_-100", "logits_-10000")
GROWTH = {"rising": 2.8, "steep": 8.0}  # binary orders of magnitude from the last key to the first
CHUNK = 1 << 25  # scores held at a time
L2_SAMPLES = 1024  # elements of out from which on its relative L2 error says more than luck
# Of the dtype's unit roundoff: a relative L2 error that is always allowed. With one key the working precision is exact
# (its P is 1), and a kernel's is not: there P is 1 only to the rounding of the score that is subtracted from itself.
L2_FLOOR = 0.25
LSE_ABSOLUTE, LSE_RELATIVE = 1e-4, 2e-6  # what LSE may be off by


def make_inputs(
    kind: str, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *, dtype: torch.dtype,
    device: str | torch.device = "cpu", seed: int = 0, softmax_scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """q, k, v of these shapes: N(0,1), 3 N(0,1), N(0,1) with 0.1 % of entries times 10, or all logits near a number.

    ``rising`` and ``steep``: keys grow towards the first one, so that a kernel that walks from the last block to the
    first meets greater scores in every block.
    """
    if kind not in INPUT_KINDS:
        raise ValueError(f"kind: got {kind!r}; expected one of {', '.join(INPUT_KINDS)}")
    generator = torch.Generator(device=device).manual_seed(seed)
    made = [torch.randn(shape, generator=generator, device=device) for shape in (q, k, v)]
    if kind == "wide":
        made = [x * 3 for x in made]
    elif kind == "outliers":
        made = [torch.where(torch.rand(x.shape, generator=generator, device=device) < 1e-3, x * 10, x) for x in made]
    elif kind in GROWTH:
        made[1] *= torch.exp2(GROWTH[kind] * torch.linspace(1, 0, k[1], device=device))[None, :, None, None]
    elif kind != "normal":
        scale = 1 / math.sqrt(q[-1]) if softmax_scale is None else softmax_scale
        middle = math.sqrt(-float(kind.removeprefix("logits_")) / (scale * q[-1]))
        made = [middle + made[0] / middle, -middle + made[1] / middle, made[2]]
    a, b, c = (x.to(dtype) for x in made)
    return a, b, c


@dataclass(frozen=True)
class Chunk:
    """Some rows of some heads: where they stand in out, and their operands as (head, rows or keys, d)."""

    batch: Tensor
    head: Tensor
    rows: slice
    q: Tensor
    k: Tensor
    v: Tensor
    hidden: Tensor | None  # (rows, keys), True where a query does not see a key


def chunks(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Iterator[Chunk]:
    """A problem in pieces whose scores are few enough to hold."""
    batch, seqlen_q, heads_q, _ = q.shape
    seqlen_k, group = k.shape[1], max(1, heads_q // max(1, k.shape[2]))
    step = max(1, CHUNK // max(1, seqlen_q * seqlen_k))
    row_step = min(max(1, seqlen_q), max(1, CHUNK // max(1, seqlen_k)))
    keys = torch.arange(seqlen_k, device=q.device)
    for first in range(0, batch * heads_q, step):
        flat = torch.arange(first, min(first + step, batch * heads_q), device=q.device)
        b, h = flat // heads_q, flat % heads_q
        some_k, some_v = (x.transpose(1, 2)[b, h // group] for x in (k, v))
        for start in range(0, seqlen_q, row_step):
            rows = slice(start, min(start + row_step, seqlen_q))
            queries = torch.arange(rows.start, rows.stop, device=q.device).unsqueeze(1)
            hidden = keys > queries + (seqlen_k - seqlen_q) if causal else None
            yield Chunk(b, h, rows, q[:, rows].transpose(1, 2)[b, h], some_k, some_v, hidden)


def scores_of(chunk: Chunk, softmax_scale: float, dtype: torch.dtype) -> Tensor:
    """Scaled scores, -inf where a row does not see the key."""
    scores = chunk.q.to(dtype) @ chunk.k.to(dtype).transpose(1, 2) * softmax_scale
    return scores if chunk.hidden is None else scores.masked_fill_(chunk.hidden, float("-inf"))


def _exact(chunk: Chunk, softmax_scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scores = scores_of(chunk, softmax_scale, dtype)
    lse = torch.logsumexp(scores, dim=2)
    blind = (lse == float("-inf")).unsqueeze(2)
    p = torch.exp(scores - lse.unsqueeze(2).masked_fill(blind, 0.0))
    return p @ chunk.v.to(dtype), lse


def _working(chunk: Chunk, softmax_scale: float) -> Tensor:
    scores = (chunk.q * softmax_scale) @ chunk.k.transpose(1, 2)
    if chunk.hidden is not None:
        scores.masked_fill_(chunk.hidden, float("-inf"))
    p = torch.softmax(scores, dim=2)
    if chunk.hidden is not None:
        p = p.masked_fill(chunk.hidden.all(dim=1, keepdim=True), 0.0)
    return p @ chunk.v


def scale_of(q: Tensor, softmax_scale: float | None) -> float:
    """The scale that None stands for, or the given one."""
    return 1 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, softmax_scale: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, lse) by the definition, from inputs brought to ``dtype``. Memory stays small whatever the shapes are."""
    out = torch.zeros((*q.shape[:3], v.shape[3]), dtype=dtype, device=q.device)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"), dtype=dtype, device=q.device)
    for chunk in chunks(q, k, v, causal) if k.shape[1] else ():
        some, some_lse = _exact(chunk, scale_of(q, softmax_scale), dtype)
        out[:, chunk.rows].transpose(1, 2)[chunk.batch, chunk.head] = some
        lse[:, :, chunk.rows][chunk.batch, chunk.head] = some_lse
    return out, lse


def working_precision_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, softmax_scale: float | None = None
) -> Tensor:
    """The same dense computation with every intermediate in the inputs' dtype: the error that is to be expected."""
    out = torch.zeros((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
    for chunk in chunks(q, k, v, causal) if k.shape[1] else ():
        out[:, chunk.rows].transpose(1, 2)[chunk.batch, chunk.head] = _working(chunk, scale_of(q, softmax_scale))
    return out


@dataclass(frozen=True)
class Verdict:
    """How far a result is from the reference, and how far it may be. NaN anywhere is never ok."""

    max_error: float
    max_allowed: float  # 2 max|pt - ref| + 2 max|(ref + 0.3 - 0.3) - ref|
    l2_error: float  # relative
    l2_allowed: float  # a tenth more than the working precision's or L2_FLOOR; inf for results too small for statistics
    lse_error: float  # max of |lse - ref| / (1e-4 + 2e-6 |ref|); 0 when there is no lse to judge

    @property
    def ok(self) -> bool:
        """Whether all three rules hold."""
        return self.max_error <= self.max_allowed and self.l2_error <= self.l2_allowed and self.lse_error <= 1.0

    @property
    def share(self) -> float:
        """The share of the allowed max error: above 1 is wrong."""
        return self.max_error / self.max_allowed if self.max_allowed > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{'ok' if self.ok else 'WRONG'}: max error {self.max_error:.2e} of {self.max_allowed:.2e}, relative L2 "
            f"{self.l2_error:.2e} of {self.l2_allowed:.2e}, LSE {self.lse_error:.2f} of its bound"
        )


def judge(
    out: Tensor, lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False,
    softmax_scale: float | None = None,
) -> Verdict:  # fmt: skip
    """The acceptance rule for a result of these inputs. Memory stays small whatever the shapes are."""
    expected = (*q.shape[:3], v.shape[3])
    if tuple(out.shape) != expected:
        raise ValueError(f"out: got shape {tuple(out.shape)}; expected {expected}")
    if k.shape[1] == 0:
        blind = 0.0 if lse is None or bool((lse == float("-inf")).all()) else math.inf
        worst = float(out.abs().max()) if out.numel() else 0.0
        return Verdict(worst, 0.0, worst, 0.0, blind)
    zero = torch.zeros((), dtype=torch.float64, device=q.device)
    top, pt_top, rounding, lse_top = (zero.clone() for _ in range(4))
    squares, pt_squares, ref_squares = (zero.clone() for _ in range(3))
    for chunk in chunks(q, k, v, causal):
        ref, ref_lse = _exact(chunk, scale_of(q, softmax_scale), torch.float64)
        error = out[:, chunk.rows].transpose(1, 2)[chunk.batch, chunk.head] - ref
        pt_error = _working(chunk, scale_of(q, softmax_scale)) - ref
        rounded = ref.to(q.dtype)
        top = torch.maximum(top, error.abs().max())
        pt_top = torch.maximum(pt_top, pt_error.abs().max())
        rounding = torch.maximum(rounding, (rounded + 0.3 - 0.3 - rounded).abs().max().double())
        squares = squares + error.square().sum()
        pt_squares = pt_squares + pt_error.square().sum()
        ref_squares = ref_squares + ref.square().sum()
        if lse is not None:
            some = lse[:, :, chunk.rows][chunk.batch, chunk.head].double()
            excess = (some - ref_lse).abs() / (LSE_ABSOLUTE + LSE_RELATIVE * ref_lse.abs())
            lse_top = torch.maximum(lse_top, excess.masked_fill(some == ref_lse, 0.0).max())
    norm = max(float(ref_squares), 1e-300)
    floor = L2_FLOOR * torch.finfo(q.dtype).eps / 2
    l2_allowed = max(1.1 * math.sqrt(float(pt_squares) / norm), floor) if out.numel() >= L2_SAMPLES else math.inf
    return Verdict(
        float(top), 2 * float(pt_top) + 2 * float(rounding), math.sqrt(float(squares) / norm), l2_allowed,
        float(lse_top),
    )  # fmt: skip
