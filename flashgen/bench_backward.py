"""What is timed of a backward, and the memory that it borrows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from flashgen.backward_kernel import BackwardKernel
from flashgen.bench_grid import OURS, STEADY
from flashgen.ops import attention
from flashgen.peers import Run, gradients_of


def autograd_runs(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, *, causal: bool, deterministic: bool = False
) -> dict[str, Run]:
    """The backward of ``flashgen.attention`` through autograd; with ``deterministic``, that one beside it."""
    runs = {}
    for name in (OURS, STEADY) if deterministic else (OURS,):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = attention(*leaves, causal=causal, deterministic=name == STEADY)
        runs[name] = gradients_of(out, leaves, dout)  # type: ignore[arg-type]  # no LSE was asked for
    return runs


def kernel_runs(
    kernels: Mapping[str, BackwardKernel], q: Tensor, k: Tensor, v: Tensor, dout: Tensor, *, causal: bool
) -> dict[str, Run]:
    """These kernels by themselves, without autograd, over what flashgen's forward gives."""
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    return {name: partial(kernel, dout, q, k, v, out, lse) for name, kernel in kernels.items()}


def borrowed_bytes(run: Run) -> int:
    """Bytes of GPU memory that a backward takes at its peak, beside the gradients that it returns.

    By torch's allocator, which may round each tensor up by as much as a megabyte. What others allocate past it is
    not seen.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gradients = run()
    peak = torch.cuda.max_memory_allocated() - before
    return max(0, peak - sum(x.numel() * x.element_size() for x in gradients))
