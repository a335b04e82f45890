"""The backward's algorithm in PyTorch, tile by tile: slow, and the same contract on a machine without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from flashgen.generator.backward_plan import BackwardPlan
from flashgen.generator.spec import Mask
from flashgen.outputs import new_gradients


def attend_backward(
    plan: BackwardPlan, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None,
    softmax_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dq, dk, dv) of checked tensors, over the plan's tiles: block_n keys against block_m query rows at a time.

    Everything is float32, but that P and dS are rounded to the input dtype before they meet dO, Q and K, as in the
    kernel. The gradients of a key head are added up over its query heads before they are rounded.
    """
    gradients = dq, dk, dv = new_gradients(q, k, v)
    if q.numel() == 0 or k.numel() == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    group, seqlen_q, seqlen_k = q.shape[2] // k.shape[2], q.shape[1], k.shape[1]
    blind = (lse == float("-inf")).unsqueeze(3)  # (batch, heads_q, seqlen_q, 1): nothing that stands there counts
    queries, douts, outs = (x.transpose(1, 2).float().masked_fill(blind, 0.0) for x in (q, dout, out))
    # dS = P (dP - rowsum(dO O)) + P dLSE = P (dP - dpsum)
    dpsum = (douts * outs).sum(dim=3, keepdim=True)
    if dlse is not None:
        dpsum = dpsum - dlse.unsqueeze(3)
    dpsum, shift = dpsum.masked_fill(blind, 0.0), lse.unsqueeze(3).masked_fill(blind, float("inf"))
    dq_accum = torch.zeros_like(queries)
    for first in range(0, seqlen_k, plan.block_n):
        block = slice(first, min(first + plan.block_n, seqlen_k))
        keys, values = (x[:, block].transpose(1, 2).float().repeat_interleave(group, dim=1) for x in (k, v))
        dk_accum, dv_accum = torch.zeros_like(keys), torch.zeros_like(values)
        for start in range(0, seqlen_q, plan.block_m):
            rows = slice(start, min(start + plan.block_m, seqlen_q))
            some, some_dout = queries[:, :, rows], douts[:, :, rows]
            p = torch.exp((some @ keys.transpose(2, 3)) * softmax_scale - shift[:, :, rows])
            if plan.spec.mask == Mask.causal:
                last_key = torch.arange(rows.start, rows.stop).unsqueeze(1) + (seqlen_k - seqlen_q)
                p = p.masked_fill(torch.arange(block.start, block.stop) > last_key, 0.0)
            ds = p * (some_dout @ values.transpose(2, 3) - dpsum[:, :, rows])
            p, ds = (x.to(q.dtype).float() for x in (p, ds))
            dv_accum += p.transpose(2, 3) @ some_dout
            dk_accum += ds.transpose(2, 3) @ some
            dq_accum[:, :, rows] += ds @ keys
        for to, accum, scale in ((dk, dk_accum, softmax_scale), (dv, dv_accum, 1.0)):
            to[:, block] = (accum.unflatten(1, (k.shape[2], group)).sum(dim=2) * scale).transpose(1, 2).to(to.dtype)
    dq.copy_((dq_accum * softmax_scale).transpose(1, 2))
    return gradients
