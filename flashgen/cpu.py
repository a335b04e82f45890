"""The kernel's algorithm in PyTorch, tile by tile: slow, and the same contract on a machine without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from flashgen.generator.plan import KernelPlan
from flashgen.generator.spec import Mask
from flashgen.outputs import fill_empty, new_lse, new_out


def attend(plan: KernelPlan, q: Tensor, k: Tensor, v: Tensor, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """(out, lse) of checked tensors, over the plan's tiles: block_m query rows against block_n keys at a time.

    Scores and sums are float32; probabilities are rounded to the input dtype before they meet V, as in the kernel. Row
    maxima rise with every block, as without ``lazy_rescale``: with it a kernel rounds probabilities of another scale.
    """
    out, lse = new_out(q, v.shape[3]), new_lse(q)
    if q.numel() == 0 or k.numel() == 0:
        fill_empty(out, lse)
        return out, lse
    group = q.shape[2] // k.shape[2]
    keys, values = (x.transpose(1, 2).repeat_interleave(group, dim=1) for x in (k, v))  # (batch, heads_q, seq, d)
    for start in range(0, q.shape[1], plan.block_m):
        rows = slice(start, min(start + plan.block_m, q.shape[1]))
        tile, tile_lse = _tile(plan, q[:, rows].transpose(1, 2), keys, values, start, q.shape[1], softmax_scale)
        out[:, rows] = tile.transpose(1, 2).to(out.dtype)
        lse[:, :, rows] = tile_lse
    return out, lse


def _tile(
    plan: KernelPlan, q: Tensor, k: Tensor, v: Tensor, start: int, seqlen_q: int, softmax_scale: float
) -> tuple[Tensor, Tensor]:
    """One tile of query rows, all heads and batches at once: online softmax over blocks of keys."""
    rows, seqlen_k = q.shape[2], k.shape[2]
    last_key = torch.arange(start, start + rows).unsqueeze(1) + (seqlen_k - seqlen_q)  # bottom-right: the last one seen
    causal = plan.spec.mask == Mask.causal
    end = min(seqlen_k, max(0, start + rows + seqlen_k - seqlen_q)) if causal else seqlen_k
    row_max = q.new_full((*q.shape[:3], 1), float("-inf"), dtype=torch.float32)
    row_sum = torch.zeros_like(row_max)
    acc = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=torch.float32)
    for first in range(0, end, plan.block_n):
        block = slice(first, min(first + plan.block_n, seqlen_k))
        scores = (q.float() @ k[:, :, block].float().transpose(2, 3)) * softmax_scale
        if causal:
            scores.masked_fill_(torch.arange(block.start, block.stop) > last_key, float("-inf"))
        new_max = torch.maximum(row_max, scores.amax(dim=3, keepdim=True))
        # A row that has seen no key yet has maximum -inf, and -inf - -inf is no number.
        shift = new_max.masked_fill(new_max == float("-inf"), 0.0)
        p = torch.exp(scores - shift)
        rescale = torch.exp(row_max - shift)
        row_sum = row_sum * rescale + p.sum(dim=3, keepdim=True)
        acc = acc * rescale + p.to(v.dtype).float() @ v[:, :, block].float()
        row_max = new_max
    blind = row_sum == 0  # not `> 0`: a NaN must stay one
    out = (acc / row_sum).masked_fill(blind, 0.0)
    lse = (row_max + row_sum.log()).masked_fill(blind, float("-inf"))
    return out, lse.squeeze(3)
