"""Attention by others, to be timed beside flashgen: torch's own, and that of packages which happen to be installed.

An adapter takes q, k and v, (batch, seqlen, heads, head_dim) as flashgen does, and gives a function of no arguments
that returns out in that layout, or None when it does not take the shape. Causal masks end at the bottom right corner,
as flashgen's do; who aligns them otherwise is left out of shapes where that differs. Nothing is imported before use.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Run = Callable[[], "Tensor"]
Adapter = Callable[["Tensor", "Tensor", "Tensor", bool], Run | None]

# (head dim, head dim of v) that FlashInfer's prefill kernels are made for.
FLASHINFER_DIMS = {(64, 64), (128, 128), (256, 256), (192, 128)}
FLASHINFER_WORKSPACE_BYTES = 256 << 20


class LeftOutError(RuntimeError):
    """A peer cannot be timed on a shape; the message is why."""


@dataclass(frozen=True)
class Peer:
    """``title``: as a legend has it. ``module``: what must import. ``by_default``: timed unless others are named."""

    title: str
    module: str
    adapter: Adapter
    by_default: bool = True


def usable(names: Iterable[str] | None = None) -> tuple[tuple[str, ...], dict[str, str]]:
    """The peers that import here, and why the others do not. ``names``: these; None: all that are by default.

    A peer that nobody named and that is not installed is not mentioned.
    """
    wanted = [name for name, peer in PEERS.items() if peer.by_default] if names is None else list(names)
    found, notes = [], {}
    for name in wanted:
        module = PEERS[name].module
        try:
            importlib.import_module(module)
            found.append(name)
        except (ImportError, RuntimeError, OSError) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is None or not f"{module}.".startswith(f"{missing}."):
                notes[name] = _first_line(error)
            elif names is not None:
                notes[name] = f"{module} is not installed"
    return tuple(found), notes


def run_of(name: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Run:
    """The peer's attention over these tensors, after a first run, which compiles; LeftOutError where it cannot."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns why a backend refuses, and then raises
            run = PEERS[name].adapter(q, k, v, causal)
            if run is not None:
                run()
                if q.is_cuda:
                    torch.cuda.synchronize()
    except Exception as error:  # each of them refuses shapes in its own way: assertions, errors of compilers
        raise LeftOutError(_first_line(error)) from error
    if run is None:
        raise LeftOutError("it does not take the shape")
    return run


def left_out_notes(absent: Mapping[str, str], refused: Mapping[str, Sequence[str]], shapes: int) -> list[str]:
    """A line for each peer that is absent, and for each that refused some of that many shapes, with its reasons."""
    return [f"{name}: left out. {reason}" for name, reason in absent.items()] + [
        f"{name}: left out of {len(reasons)} of {shapes} shapes. {'; '.join(dict.fromkeys(reasons))}"
        for name, reasons in refused.items()
    ]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"


def _sdpa(backend: str) -> Adapter:
    def adapter(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run | None:
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


def _flex(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run | None:
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


def _flash_attn(module: str, *, one_head_dim: bool = False) -> Adapter:
    """FlashAttention 2, 3 and 4, whose functions take the same arguments of ours; some versions also return the LSE."""

    def adapter(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run | None:
        function = importlib.import_module(module).flash_attn_func
        if one_head_dim and q.shape[3] != v.shape[3]:
            return None

        def run() -> Tensor:
            result = function(q, k, v, causal=causal)
            return result[0] if isinstance(result, tuple) else result

        return run

    return adapter


def _flashinfer(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Run | None:
    import torch

    flashinfer = importlib.import_module("flashinfer")
    (batch, seqlen_q, heads_q, head_dim), (seqlen_k, heads_kv) = q.shape, k.shape[1:3]
    d_v = v.shape[3]
    if (head_dim, d_v) not in FLASHINFER_DIMS:
        return None
    if batch == 1:
        alone = [x[0] for x in (q, k, v)]
        return lambda: flashinfer.single_prefill_with_kv_cache(*alone, causal=causal)[None]
    workspace = torch.empty(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    starts_q, starts_k = (
        torch.arange(batch + 1, dtype=torch.int32, device=q.device) * length for length in (seqlen_q, seqlen_k)
    )
    wrapper.plan(
        starts_q, starts_k, heads_q, heads_kv, head_dim, head_dim_vo=d_v, causal=causal, q_data_type=q.dtype,
        kv_data_type=k.dtype,
    )  # fmt: skip
    ragged = [x.flatten(0, 1) for x in (q, k, v)]
    return lambda: wrapper.run(*ragged).view(batch, seqlen_q, heads_q, d_v)


PEERS: dict[str, Peer] = {
    "cudnn": Peer("cuDNN (torch SDPA)", "torch", _sdpa("cudnn")),
    "flash": Peer("FlashAttention-2 (torch SDPA)", "torch", _sdpa("flash")),
    "efficient": Peer("efficient (torch SDPA)", "torch", _sdpa("efficient")),
    "flex": Peer("flex_attention (torch)", "torch.nn.attention.flex_attention", _flex, by_default=False),
    "fa2": Peer("FlashAttention-2", "flash_attn", _flash_attn("flash_attn", one_head_dim=True)),
    "fa3": Peer("FlashAttention-3", "flash_attn_interface", _flash_attn("flash_attn_interface")),
    "fa4": Peer("FlashAttention-4", "flash_attn.cute", _flash_attn("flash_attn.cute")),
    "flashinfer": Peer("FlashInfer", "flashinfer", _flashinfer),
}
