"""What right means for gradients: float64 autograd, the same in the working precision, and the rule for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from flashgen.testing import (
    L2_FLOOR,
    L2_SAMPLES,
    LSE_ABSOLUTE,
    LSE_RELATIVE,
    Chunk,
    Verdict,
    chunks,
    scale_of,
    scores_of,
)

Gradients = tuple[Tensor, Tensor, Tensor]  # of q, k and v
Part = Callable[[Chunk, Tensor, Tensor | None], Gradients]
NAMES = ("dq", "dk", "dv")
# Relative errors that no kernel avoids, as standard deviations: of P, dS and out, in unit roundoffs of their 16 bits,
# and of P by its float32 score, in the score's own size. They are what L2 errors are allowed where terms cancel: keys
# that are all near one another (logits near -1e4) leave dq a small difference of large products.
ROUNDING = 0.5
SCORE_ROUNDING = 2.0**-22
# What a sum on tensor cores may lose: they take STEP terms at a time and cut off what float32 does not hold instead of
# rounding it. Where all terms have one sign, every step loses in the same direction, up to a unit in the last place.
CUT = 2.0**-23
STEP = 16
DQ_KEYS = 128  # the most keys whose share of dq is summed so; the blocks of keys are added with rounding
WORST = 3.0  # standard deviations that one number may be off: tells only where pt was lucky with few numbers


def reference_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *, dlse: Tensor | None = None, causal: bool = False,
    softmax_scale: float | None = None,
) -> Gradients:  # fmt: skip
    """(dq, dk, dv) by autograd in float64, for gradients ``dout`` of out and ``dlse`` of LSE."""
    part = partial(_chunk_gradients, softmax_scale=scale_of(q, softmax_scale), dtype=torch.float64)
    return _sum(part, dout, dlse, q, k, v, causal)


def working_precision_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *, dlse: Tensor | None = None, causal: bool = False,
    softmax_scale: float | None = None,
) -> Gradients:  # fmt: skip
    """The same with every intermediate in the inputs' dtype: the error that is to be expected."""
    part = partial(_chunk_gradients, softmax_scale=scale_of(q, softmax_scale), dtype=q.dtype)
    dq, dk, dv = _sum(part, dout, dlse, q, k, v, causal)
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)


@dataclass(frozen=True)
class GradientVerdict:
    """How far the gradients are from the reference, and how far they may be."""

    dq: Verdict
    dk: Verdict
    dv: Verdict

    @property
    def each(self) -> tuple[Verdict, Verdict, Verdict]:
        """Those of dq, dk and dv."""
        return self.dq, self.dk, self.dv

    @property
    def ok(self) -> bool:
        """Whether all three are within the rule."""
        return all(verdict.ok for verdict in self.each)

    @property
    def share(self) -> float:
        """The largest share of the allowed max error: above 1 is wrong."""
        return max(verdict.share for verdict in self.each)

    @property
    def l2_error(self) -> float:
        """The largest relative L2 error."""
        return max(verdict.l2_error for verdict in self.each)

    def __str__(self) -> str:
        return "; ".join(f"{name} {verdict}" for name, verdict in zip(NAMES, self.each, strict=True))


def judge_gradients(
    gradients: Gradients, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *, dlse: Tensor | None = None,
    causal: bool = False, softmax_scale: float | None = None,
) -> GradientVerdict:  # fmt: skip
    """The acceptance rule for gradients of these inputs."""
    keywords = {"dlse": dlse, "causal": causal, "softmax_scale": softmax_scale}
    refs = reference_gradients(dout, q, k, v, **keywords)  # type: ignore[arg-type]
    pts = working_precision_gradients(dout, q, k, v, **keywords)  # type: ignore[arg-type]
    noises = _sum(partial(_chunk_noise, softmax_scale=scale_of(q, softmax_scale)), dout, dlse, q, k, v, causal)
    # The factor that all of P may be off by together: what the rule for LSE allows. Tensor cores cut sums off, so
    # scores near -1e4 are all too large or all too small by some 1e-2, and exp(score - LSE) with them.
    of_p = LSE_ABSOLUTE + LSE_RELATIVE * _largest_lse(q, k, v, causal, scale_of(q, softmax_scale))
    rows = q.shape[1] * (q.shape[2] // max(1, k.shape[2]))  # of all query heads that read a key
    shifts = [of_p + cut_off(terms) for terms in (min(DQ_KEYS, k.shape[1]), rows, rows)]
    a, b, c = (_verdict(*each) for each in zip(NAMES, gradients, refs, pts, noises, shifts, strict=True))
    return GradientVerdict(a, b, c)


def cut_off(terms: int) -> float:
    """The relative error that cutting off may leave in a sum of so many terms: 7.6e-6 for 1024 of them."""
    return CUT * terms / STEP


def _verdict(name: str, got: Tensor, ref: Tensor, pt: Tensor, noise: Tensor, shift: float) -> Verdict:
    if got.shape != ref.shape:
        raise ValueError(f"{name}: got shape {tuple(got.shape)}; expected {tuple(ref.shape)}")
    if got.numel() == 0:
        return Verdict(0.0, 0.0, 0.0, math.inf, 0.0)
    error, pt_error, rounded = got - ref, pt - ref, ref.to(pt.dtype)
    rounding = float((rounded + 0.3 - 0.3 - rounded).abs().max())
    norm, top = float(ref.norm()), float(ref.abs().max())
    # Where every gradient is 0, no error has a relative size.
    relative = got.numel() >= L2_SAMPLES and norm > 0
    floor = L2_FLOOR * torch.finfo(pt.dtype).eps / 2
    return Verdict(
        float(error.abs().max()),
        max(2 * float(pt_error.abs().max()), WORST * math.sqrt(float(noise.max())) + shift * top) + 2 * rounding,
        float(error.norm()) / norm if norm > 0 else 0.0,
        max(1.1 * float(pt_error.norm()) / norm, math.sqrt(float(noise.sum())) / norm + shift, floor)
        if relative
        else math.inf,
        0.0,
    )


def _largest_lse(q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float) -> float:
    largest = 0.0
    for chunk in chunks(q, k, v, causal) if k.shape[1] else ():
        lse = torch.logsumexp(scores_of(chunk, softmax_scale, torch.float64), dim=2)
        largest = max(largest, float(lse.masked_fill(lse == float("-inf"), 0.0).abs().max()))
    return largest


def _chunk_noise(chunk: Chunk, dout: Tensor, dlse: Tensor | None, softmax_scale: float) -> Gradients:
    """The squares of what roundings that no kernel avoids add to each number, were they independent."""
    unit = ROUNDING * torch.finfo(chunk.q.dtype).eps / 2
    q, k, v, dout = chunk.q.double(), chunk.k.double(), chunk.v.double(), dout.double()
    scores = scores_of(chunk, softmax_scale, torch.float64)
    p = torch.softmax(scores, dim=2).nan_to_num(0.0)  # rows that see no key
    out = p @ v
    ds = dout @ v.transpose(1, 2) - (dout * out).sum(dim=2, keepdim=True)
    if dlse is not None:
        ds = ds + dlse.double().unsqueeze(2)
    weight = unit**2 + (SCORE_ROUNDING * scores.masked_fill(p == 0, 0.0)).square()
    ds2, p2 = (p * ds).square() * weight, p.square() * weight
    # dS = P (dP - rowsum(dO O)): rounding O moves all of a row of dS by one number times P.
    moved = (dout * out).square().sum(dim=2, keepdim=True) * unit**2
    dq = ds2 @ k.square() + moved * (p @ k).square()
    dk = (ds2 + p.square() * moved).transpose(1, 2) @ q.square()
    return dq * softmax_scale**2, dk * softmax_scale**2, p2.transpose(1, 2) @ dout.square()


def _sum(part: Part, dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Gradients:
    """What ``part`` gives for each chunk, dout and dlse, added up over chunks and heads in float64."""
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64, device=q.device) for x in (q, k, v))
    group = max(1, q.shape[2] // max(1, k.shape[2]))
    for chunk in chunks(q, k, v, causal) if k.shape[1] else ():
        some_dout = dout[:, chunk.rows].transpose(1, 2)[chunk.batch, chunk.head]
        some_dlse = None if dlse is None else dlse[:, :, chunk.rows][chunk.batch, chunk.head]
        parts = [x.double() for x in part(chunk, some_dout, some_dlse)]
        dq[:, chunk.rows].transpose(1, 2)[chunk.batch, chunk.head] = parts[0]
        for to, some in zip((dk, dv), parts[1:], strict=True):
            to.transpose(1, 2).index_put_((chunk.batch, chunk.head // group), some, accumulate=True)
    return dq, dk, dv


def _chunk_gradients(
    chunk: Chunk, dout: Tensor, dlse: Tensor | None, softmax_scale: float, dtype: torch.dtype
) -> Gradients:
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in (chunk.q, chunk.k, chunk.v))
    with torch.enable_grad():
        scores = (q * softmax_scale) @ k.transpose(1, 2)
        blind = None
        if chunk.hidden is not None:
            blind = chunk.hidden.all(dim=1, keepdim=True)
            scores = scores.masked_fill(chunk.hidden & ~blind, float("-inf"))
        p = torch.softmax(scores, dim=2)
        lse = torch.logsumexp(scores.to(torch.promote_types(dtype, torch.float32)), dim=2)
        if blind is not None:
            p, lse = p.masked_fill(blind, 0.0), lse.masked_fill(blind.squeeze(1), 0.0)
        results, given = [p @ v], [dout.to(dtype)]
        if dlse is not None:
            results, given = [*results, lse], [*given, dlse.to(lse.dtype)]
        dq, dk, dv = torch.autograd.grad(results, (q, k, v), given, allow_unused=False)
    return dq, dk, dv
