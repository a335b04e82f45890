"""``attention`` and the torch.library ops under it: CUDA, CPU and fake implementations of one contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashgen.calls import Launcher
from flashgen.cpu import attend
from flashgen.loading import kernel_for
from flashgen.select import check_features, check_no_grad, check_scale, select
from flashgen.training import attention_train, train_fake

_ARGUMENTS = "(Tensor q, Tensor k, Tensor v, bool causal=False, float? softmax_scale=None)"

# Library.define costs 4 us a call, custom_op 11.
_library = torch.library.Library("flashgen", "DEF")
_library.define(f"attention_fwd{_ARGUMENTS} -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.define(f"attention_fwd_lse{_ARGUMENTS} -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))

_grad_enabled = torch.is_grad_enabled
# One call for three tensors; not in every torch.
_require_grad: Callable[..., bool] = getattr(torch._C, "_any_requires_grad", lambda *_: True)

_launch = Launcher(lambda spec, keys: kernel_for(spec, keys).loaded)


def _cuda(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None) -> Tensor:
    if _grad_enabled() and _require_grad(q, k, v):
        check_no_grad(q, k, v)
    return _launch(q, k, v, causal, softmax_scale, False)[0]


def _cuda_lse(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    check_no_grad(q, k, v)
    return _launch(q, k, v, causal, softmax_scale, True)  # type: ignore[return-value]


def _cpu_lse(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    check_no_grad(q, k, v)
    kernel = kernel_for(select(q, k, v, causal=causal), k.shape[1])
    return attend(kernel.plan, q, k, v, check_scale(softmax_scale, q.shape[3]))


def _cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None) -> Tensor:
    return _cpu_lse(q, k, v, causal, softmax_scale)[0]


def _fake_lse(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None
) -> tuple[Tensor, Tensor]:
    check_no_grad(q, k, v)
    return train_fake(q, k, v, softmax_scale)


def _fake(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None) -> Tensor:
    return _fake_lse(q, k, v, causal, softmax_scale)[0]


_library.impl("attention_fwd", _cuda, "CUDA")
_library.impl("attention_fwd_lse", _cuda_lse, "CUDA")
_library.impl("attention_fwd", _cpu, "CPU")
_library.impl("attention_fwd_lse", _cpu_lse, "CPU")
torch.library.register_fake("flashgen::attention_fwd", _fake, lib=_library)
torch.library.register_fake("flashgen::attention_fwd_lse", _fake_lse, lib=_library)

# Autograd has nothing to do here, and need not be asked.
for _name in ("attention_fwd", "attention_fwd_lse"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")

_attention_fwd = torch.ops.flashgen.attention_fwd.default
_attention_fwd_lse = torch.ops.flashgen.attention_fwd_lse.default


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    window: Any = None,
    softcap: Any = None,
    alibi_slopes: Any = None,
    attn_bias: Any = None,
    sink: Any = None,
    dropout_p: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Exact attention of ``q`` (batch, seqlen_q, heads_q, d_qk) over ``k`` and ``v`` (batch, seqlen_k, heads_kv, d).

    fp16 or bf16; any strides; head dims are multiples of 8 up to 256, d_v free of d_qk; heads_q is a multiple of
    heads_kv. Query i stands at key position i + seqlen_k - seqlen_q, and with ``causal`` sees no later key. A row that
    sees no key gives 0. ``softmax_scale`` is 1/sqrt(d_qk) unless given.

    Gives ``out`` (batch, seqlen_q, heads_q, d_v), with q's strides when q is dense and d_v equals d_qk; with
    ``return_lse`` also the float32 natural log-sum-exp of the scaled scores (batch, heads_q, seqlen_q), -inf for a row
    that sees no key. The kernel is compiled on the first call of its kind, unless ``flashgen.load`` brought it.

    Both have gradients. ``deterministic`` makes these the same bits in every run, as the results always are.

    The remaining arguments have no kernel yet: giving one raises NotAvailableError. Wrong arguments raise
    ArgumentError, which is a ValueError, before anything is launched.
    """
    if not (window is softcap is alibi_slopes is attn_bias is sink is dropout_p is None):
        check_features({
            "window": window, "softcap": softcap, "alibi_slopes": alibi_slopes, "attn_bias": attn_bias, "sink": sink,
            "dropout_p": dropout_p,
        })  # fmt: skip
    if _grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        results = attention_train(q, k, v, softmax_scale, causal, deterministic)
        return results if return_lse else results[0]
    if return_lse:
        return _attention_fwd_lse(q, k, v, causal, softmax_scale)
    return _attention_fwd(q, k, v, causal, softmax_scale)
