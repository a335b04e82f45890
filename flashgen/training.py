"""The ops with gradients: ``attention_train`` is a forward that autograd knows, ``attention_bwd`` is its backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashgen.backward_calls import BackwardLauncher, Gradients, Operands
from flashgen.backward_select import check_backward, select_backward
from flashgen.calls import Launcher
from flashgen.cpu import attend
from flashgen.cpu_backward import attend_backward
from flashgen.errors import NotAvailableError
from flashgen.loading import kernel_for
from flashgen.outputs import new_gradients, new_lse, new_out
from flashgen.select import check_scale, check_tensors, select

_CHOICES = "float? softmax_scale=None, bool causal=False, bool deterministic=False"

_library = torch.library.Library("flashgen", "FRAGMENT")
for _schema in (
    f"attention_train(Tensor q, Tensor k, Tensor v, {_CHOICES}) -> (Tensor, Tensor)",
    f"attention_bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, {_CHOICES}) "
    "-> (Tensor, Tensor, Tensor)",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


_launch = Launcher(lambda spec, keys: kernel_for(spec, keys).loaded)
_launch_backward = BackwardLauncher(lambda spec, keys: kernel_for(spec, keys).loaded)


def _train_cuda(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _launch(q, k, v, causal, softmax_scale, True)  # type: ignore[return-value]


def _train_cpu(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    kernel = kernel_for(select(q, k, v, causal=causal), k.shape[1])
    return attend(kernel.plan, q, k, v, check_scale(softmax_scale, q.shape[3]))


def train_fake(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Out and LSE that hold nothing yet, once the operands are legal."""
    check_tensors(q, k, v)
    check_scale(softmax_scale, 1)
    return new_out(q, v.shape[3]), new_lse(q)


def _backward_cuda(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None,
    softmax_scale: float | None = None, causal: bool = False, deterministic: bool = False,
) -> Gradients:  # fmt: skip
    return _launch_backward(Operands(dout, q, k, v, out, lse, dlse), softmax_scale, causal, deterministic)


def _backward_cpu(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None,
    softmax_scale: float | None = None, causal: bool = False, deterministic: bool = False,
) -> Gradients:  # fmt: skip
    check_backward(dout, q, k, v, out, lse, dlse)
    kernel = kernel_for(select_backward(q, k, v, causal=causal, deterministic=deterministic), k.shape[1])
    return attend_backward(kernel.plan, dout, q, k, v, out, lse, dlse, check_scale(softmax_scale, q.shape[3]))


def _backward_fake(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None,
    softmax_scale: float | None = None, causal: bool = False, deterministic: bool = False,
) -> Gradients:  # fmt: skip
    check_backward(dout, q, k, v, out, lse, dlse)
    check_scale(softmax_scale, 1)
    return new_gradients(q, k, v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *choices = inputs
    ctx.set_materialize_grads(False)  # a gradient of LSE that nobody wants costs nothing
    ctx.save_for_backward(q, k, v, *output)
    ctx.choices = choices


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse = ctx.saved_tensors
    gradients: tuple[Tensor | None, ...] = (None, None, None)
    if dout is not None or dlse is not None:
        dout = torch.zeros_like(out) if dout is None else dout
        gradients = _attention_bwd(dout, q, k, v, out, lse, dlse, *ctx.choices)
    return (*gradients, None, None, None)


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Gradients) -> None:
    pass


def _refuse(ctx: Any, *gradients: Tensor) -> None:
    raise NotAvailableError("the gradient of attention's gradient is not available yet (available: gradients, once)")


for _name, _implementations in (
    ("attention_train", (_train_cuda, _train_cpu, train_fake)),
    ("attention_bwd", (_backward_cuda, _backward_cpu, _backward_fake)),
):
    _library.impl(_name, _implementations[0], "CUDA")
    _library.impl(_name, _implementations[1], "CPU")
    torch.library.register_fake(f"flashgen::{_name}", _implementations[2], lib=_library)
torch.library.register_autograd("flashgen::attention_train", _differentiate, setup_context=_save, lib=_library)
torch.library.register_autograd("flashgen::attention_bwd", _refuse, setup_context=_save_nothing, lib=_library)

attention_train = torch.ops.flashgen.attention_train.default
_attention_bwd = torch.ops.flashgen.attention_bwd.default
