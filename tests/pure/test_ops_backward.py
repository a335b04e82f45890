"""Attention as autograd and torch.compile see it: opcheck, one graph, checkpoints, and gradients once only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import flashgen
import flashgen.ops  # registers them
from flashgen.errors import ArgumentError, NotAvailableError


def tensors(dv: int = 16, grad: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 5, 4, 16).half(), torch.randn(2, 7, 2, 16).half(), torch.randn(2, 7, 2, dv).half()
    for x in (q, k, v):
        x.requires_grad_(grad)
    return q, k, v


def loss(q: Tensor, k: Tensor, v: Tensor, deterministic: bool = False) -> Tensor:
    out, lse = flashgen.attention(q * 2, k, v, causal=True, return_lse=True, deterministic=deterministic)
    return out.float().square().sum() + (lse.clamp(min=-1e3) * 0.3).sum()


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_opcheck_of_the_training_op(transposed: bool, deterministic: bool) -> None:
    q, k, v = tensors(24)
    if transposed:
        q = q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    op = torch.ops.flashgen.attention_train.default
    result = torch.library.opcheck(op, (q, k, v, 0.3, True, deterministic))
    assert set(result.values()) == {"SUCCESS"}
    assert {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"} <= set(result)


@pytest.mark.parametrize("dlse", [False, True])
def test_opcheck_of_the_backward(dlse: bool) -> None:
    q, k, v = tensors(grad=False)
    out, lse = flashgen.attention(q, k, v, return_lse=True)
    operands = (torch.randn_like(out), q, k, v, out, lse, torch.randn_like(lse) if dlse else None, 0.3, True, True)
    result = torch.library.opcheck(torch.ops.flashgen.attention_bwd.default, operands)
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_forward_and_backward_compile_in_one_graph(dynamic: bool) -> None:
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    q, k, v = tensors()
    for lengths in ((5, 7), (3, 4)):
        some = [x[:, :n].detach().requires_grad_() for x, n in zip((q, k, v), (*lengths, lengths[1]), strict=True)]
        got, expected = compiled(*some), loss(*some)
        torch.testing.assert_close(got, expected)
        both = (torch.autograd.grad(x, some) for x in (got, expected))
        for a, b in zip(*both, strict=True):
            torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, v), loss(q, k, v))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_no_bit(reentrant: bool) -> None:
    some = tensors()
    expected = torch.autograd.grad(loss(*some), some)
    checkpoint(loss, *some, use_reentrant=reentrant).backward()
    for x, gradient in zip(some, expected, strict=True):
        assert x.grad is not None
        assert torch.equal(x.grad, gradient)


def test_only_what_requires_grad_gets_one() -> None:
    for which in range(3):
        some = tensors(grad=False)
        some[which].requires_grad_()
        loss(*some).backward()
        assert [x.grad is not None for x in some] == [i == which for i in range(3)]


def test_the_gradient_of_lse_alone() -> None:
    q, k, v = tensors()
    lse = flashgen.attention(q, k, v, return_lse=True)[1]
    dq, dk, dv = torch.autograd.grad(lse.sum(), (q, k, v))
    a, b = (x.detach().double().requires_grad_() for x in (q, k))
    scores = a.transpose(1, 2) @ b.repeat_interleave(2, 2).transpose(1, 2).transpose(2, 3) / 4
    expected = torch.autograd.grad(scores.logsumexp(3).sum(), (a, b))
    torch.testing.assert_close(dq.double(), expected[0], atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(dk.double(), expected[1], atol=2e-3, rtol=2e-3)
    assert dv.eq(0).all()


def test_no_dlse_reaches_the_op_unless_lse_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashgen import training

    seen: list[bool] = []
    op = training._attention_bwd

    def spy(*arguments):  # type: ignore[no-untyped-def]
        seen.append(arguments[6] is None)
        return op(*arguments)

    monkeypatch.setattr(training, "_attention_bwd", spy)
    q, k, v = tensors()
    flashgen.attention(q, k, v).sum().backward()
    loss(q, k, v).backward()
    assert seen == [True, False]


def test_a_second_gradient_raises_and_a_first_one_with_create_graph_does_not() -> None:
    q, k, v = tensors()
    (dq,) = torch.autograd.grad(loss(q, k, v), q, create_graph=True)
    assert dq.requires_grad
    with pytest.raises(NotAvailableError, match="gradient of attention's gradient is not available yet"):
        dq.float().square().sum().backward()


def test_gradients_lie_as_their_tensors_do_where_these_are_dense() -> None:
    q, k, v = (x.detach() for x in tensors())
    q = q.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    wide = torch.cat((k, v), dim=3)
    k, v = (x.detach().requires_grad_() for x in wide.split(16, dim=3))
    dq, dk, dv = torch.autograd.grad(loss(q, k, v), (q, k, v))
    assert dq.stride() == q.stride()
    assert dk.is_contiguous()
    assert dv.is_contiguous()


def test_slices_of_a_packed_projection() -> None:
    packed = torch.randn(2, 9, 8, 16).half().requires_grad_()
    loss(*packed.split((4, 2, 2), dim=2)).backward()
    parts = [x.detach().clone().requires_grad_() for x in packed.split((4, 2, 2), dim=2)]
    loss(*parts).backward()
    assert packed.grad is not None
    assert torch.equal(packed.grad, torch.cat([x.grad for x in parts], dim=2))  # type: ignore[misc]


def test_head_dims_far_apart_have_gradients() -> None:
    """16 with 256 fill the most registers; padded with zeros they are another kernel's, and the gradients the same."""
    q, k, v = tensors(256)
    wider = [torch.nn.functional.pad(x, (0, 8)) for x in (q, k)]
    outs = flashgen.attention(q, k, v), flashgen.attention(*wider, v, softmax_scale=0.25)
    given, expected = (torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs)  # type: ignore[union-attr]
    for got, want in zip((outs[0], *given), (outs[1], *expected), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("feature", ["window", "softcap", "alibi_slopes", "attn_bias", "sink", "dropout_p"])
def test_features_without_a_kernel_are_refused_in_training_too(feature: str) -> None:
    with pytest.raises(NotAvailableError, match=f"{feature} is not available yet"):
        flashgen.attention(*tensors(), **{feature: 1.0})


def test_wrong_arguments_raise_before_anything_runs() -> None:
    q, k, v = tensors()
    with pytest.raises(ArgumentError, match="softmax_scale: got -1"):
        flashgen.attention(q, k, v, softmax_scale=-1.0)
    with pytest.raises(ArgumentError, match="head dim of v: got 12"):
        flashgen.attention(q, k, v[..., :12])
    out, lse = flashgen.attention(q, k, v, return_lse=True)
    with pytest.raises(ArgumentError, match="dout: got shape"):
        torch.ops.flashgen.attention_bwd(out[:, :1], q, k, v, out, lse, None)


def test_meta_tensors_give_shapes() -> None:
    q, k, v = (x.detach().to("meta").requires_grad_() for x in tensors(24))
    out, lse = flashgen.attention(q, k, v, return_lse=True)
    gradients = torch.autograd.grad(out.sum() + lse.sum(), (q, k, v))
    assert [x.shape for x in gradients] == [x.shape for x in (q, k, v)]
