"""How others are called. An adapter takes q, k and v, (batch, seqlen, heads, head_dim) as flashgen does, and gives a
function of no arguments that returns out in that layout, or None when it does not take the shape.

Who has gradients gives them to autograd. Causal masks end at the bottom right corner, as flashgen's do; who aligns them
otherwise is left out of shapes where that differs. Nothing is imported before use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Forward = Callable[[], "Tensor"]
Adapter = Callable[["Tensor", "Tensor", "Tensor", bool], Forward | None]

# (head dim, head dim of v) that FlashInfer's prefill kernels are made for.
FLASHINFER_DIMS = {(64, 64), (128, 128), (256, 256), (192, 128)}
FLASHINFER_WORKSPACE_BYTES = 256 << 20


def sdpa(backend: str) -> Adapter:
    """torch's own, by one backend (a key of ``host_time.BACKENDS``)."""

    def adapter(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Forward | None:
        import torch.nn.functional as F
        from torch.nn.attention import sdpa_kernel

        from flashgen.host_time import BACKENDS

        if causal and q.shape[1] != k.shape[1]:
            return None  # torch aligns its causal mask to the top left
        qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))
        keywords: dict[str, Any] = {"is_causal": causal}
        if q.shape[2] != k.shape[2]:
            keywords["enable_gqa"] = True

        def run() -> Tensor:
            with sdpa_kernel(BACKENDS[backend]):
                return F.scaled_dot_product_attention(qt, kt, vt, **keywords).transpose(1, 2)

        return run

    return adapter


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Forward | None:
    """torch's compiled attention."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()  # else the eighth shape falls back to a run without a compiler
    further = k.shape[1] - q.shape[1]
    mask = None
    if causal:
        # Compiled, for else it holds every score's place in memory at once.
        mask = torch.compile(create_block_mask)(
            lambda batch, head, row, key: row + further >= key, None, None, q.shape[1], k.shape[1], device=q.device
        )
    compiled = torch.compile(flex_attention, dynamic=False)
    qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[2] != k.shape[2]
    return lambda: compiled(qt, kt, vt, block_mask=mask, enable_gqa=grouped).transpose(1, 2)


def flash_attn(module: str, *, one_head_dim: bool = False) -> Adapter:
    """FlashAttention 2, 3 and 4, whose functions take the same arguments of ours; some versions also return the LSE."""

    def adapter(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Forward | None:
        function = importlib.import_module(module).flash_attn_func
        if one_head_dim and q.shape[3] != v.shape[3]:
            return None

        def run() -> Tensor:
            result = function(q, k, v, causal=causal)
            return result[0] if isinstance(result, tuple) else result

        return run

    return adapter


def flashinfer(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Forward | None:
    """FlashInfer's prefill: of one sequence alone, or of a batch planned once."""
    import torch

    module = importlib.import_module("flashinfer")
    (batch, seqlen_q, heads_q, head_dim), (seqlen_k, heads_kv) = q.shape, k.shape[1:3]
    d_v = v.shape[3]
    if (head_dim, d_v) not in FLASHINFER_DIMS:
        return None
    if batch == 1:
        alone = [x[0] for x in (q, k, v)]
        return lambda: module.single_prefill_with_kv_cache(*alone, causal=causal)[None]
    workspace = torch.empty(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    starts_q, starts_k = (
        torch.arange(batch + 1, dtype=torch.int32, device=q.device) * length for length in (seqlen_q, seqlen_k)
    )
    wrapper.plan(
        starts_q, starts_k, heads_q, heads_kv, head_dim, head_dim_vo=d_v, causal=causal, q_data_type=q.dtype,
        kv_data_type=k.dtype,
    )  # fmt: skip
    ragged = [x.flatten(0, 1) for x in (q, k, v)]
    return lambda: wrapper.run(*ragged).view(batch, seqlen_q, heads_q, d_v)
