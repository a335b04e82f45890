"""Training as users do it: graphs, torch.compile, checkpoints, streams, and a small transformer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._triton import has_triton
from torch.utils.checkpoint import checkpoint

import flashgen
from flashgen.generator import BackwardPlan, KernelPlan
from flashgen.guarded import same_bits
from tests.device.backward_helpers import backward_kernel, backward_plan, gradients_of, operands
from tests.device.helpers import DEVICE, Complaints, inputs, plan_for


def kernels() -> list[BackwardPlan | KernelPlan]:
    backwards = [backward_plan(d, "bf16", "causal", steady) for d in (16, 64) for steady in (False, True)]
    return [*backwards, *(plan_for(d, "bf16", "causal", 300) for d in (16, 64))]


def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out, lse = flashgen.attention(q * 2, k, v, causal=True, return_lse=True, deterministic=True)
    return out.float().square().sum() + (lse.clamp(min=-1e3) * 0.3).sum()


def test_forward_and_backward_are_captured_and_replayed_with_new_numbers() -> None:
    plan = plan_for(64, "bf16", "causal", 300)
    leaves = [x.requires_grad_() for x in inputs(plan, 2, (500, 300), (8, 2))]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(loss(*leaves), leaves)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = torch.autograd.grad(loss(*leaves), leaves)
    complaints = Complaints()
    for seed in range(4):
        new = inputs(plan, 2, (500, 300), (8, 2), seed=seed)
        with torch.no_grad():
            for x, y in zip(leaves, new, strict=True):
                x.copy_(y)
        expected = gradients_of(loss, *new)
        graph.replay()
        torch.cuda.synchronize()
        complaints.same(f"replay {seed}", results, expected)
    complaints.settle(4)


def test_the_op_itself_is_captured_when_it_was_never_called() -> None:
    given = operands(*inputs(plan_for(16, "bf16", "causal", 300), 2, (333, 222), (4, 2)), True)
    graph = torch.cuda.CUDAGraph()
    kernel = backward_kernel(backward_plan(16, "bf16", "causal", True))
    kernel.code  # compiled: whether it is on the GPU already is not asked  # noqa: B018
    with torch.cuda.graph(graph):
        results = kernel(*given)
    graph.replay()
    torch.cuda.synchronize()
    assert all(same_bits(a, b) for a, b in zip(results, kernel(*given), strict=True))


@pytest.mark.skipif(not has_triton(), reason="inductor needs Triton")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_in_one_graph(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic)
    for seqlens in ((203, 239), (300, 129)) if dynamic else ((203, 239),):
        tensors = inputs(plan_for(64, "bf16", "causal", 300), 2, seqlens, (4, 2))
        for got, expected in zip(gradients_of(compiled, *tensors), gradients_of(loss, *tensors), strict=True):
            torch.testing.assert_close(got, expected, atol=2e-2, rtol=2e-2)
    torch._dynamo.reset()


@pytest.mark.parametrize("dlse", [False, True])
def test_opcheck(dlse: bool) -> None:
    tensors = inputs(plan_for(16, "bf16", "causal", 300), 2, (65, 129), (4, 2))
    leaves = [x.requires_grad_() for x in (y.clone() for y in tensors)]
    train = torch.library.opcheck(torch.ops.flashgen.attention_train.default, (*leaves, 0.3, True, True))
    assert set(train.values()) == {"SUCCESS"}, train
    given = operands(*tensors, True, dlse=dlse)
    backward = torch.library.opcheck(torch.ops.flashgen.attention_bwd.default, (*given, 0.3, True, True))
    assert set(backward.values()) == {"SUCCESS"}, backward


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_change_no_bit(reentrant: bool) -> None:
    tensors = inputs(plan_for(64, "bf16", "causal", 300), 2, (203, 239), (4, 2))

    def through(*leaves: Tensor) -> Tensor:
        return checkpoint(loss, *leaves, use_reentrant=reentrant)

    leaves = [x.detach().requires_grad_() for x in tensors]
    through(*leaves).backward()
    for x, expected in zip(leaves, gradients_of(loss, *tensors), strict=True):
        assert x.grad is not None
        assert same_bits(x.grad, expected)


def test_on_another_stream() -> None:
    tensors = inputs(plan_for(64, "bf16", "causal", 300), 2, (1000, 300), (4, 2))
    expected = gradients_of(loss, *tensors)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        got = gradients_of(loss, *(x.clone() for x in tensors))
    stream.synchronize()
    assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3 * self.heads, -1)).bfloat16().split(self.heads, dim=2)
        x = x + self.out(self.attend(q, k, v).flatten(2).to(x.dtype))
        return x + self.mlp(self.norms[1](x))


def sdpa_math(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = flashgen.attention(q, k, v, causal=True)
    assert isinstance(out, Tensor)
    return out


def train(attend: Callable[..., Tensor], steps: int, seed: int = 0) -> list[float]:
    """Losses of a two-layer transformer that learns to repeat what it saw half a sequence ago."""
    torch.manual_seed(seed)
    width, heads, length, words = 128, 2, 192, 64
    embed, head = nn.Embedding(words, width), nn.Linear(width, words)
    place = nn.Embedding(length, width)
    model = nn.ModuleList([embed, place, head, *(Block(width, heads, attend) for _ in range(2))]).to(DEVICE)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(steps):
        half = torch.randint(words, (16, length // 2), generator=data).to(DEVICE)
        tokens = torch.cat((half, half), dim=1)
        x = embed(tokens) + place(torch.arange(length, device=DEVICE))
        for block in model[3:]:
            x = block(x)
        error = F.cross_entropy(head(x[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
        losses.append(float(error.detach()))
    return losses


def test_a_transformer_learns_as_it_does_with_torch_s_attention() -> None:
    ours, theirs = train(flash, 60), train(sdpa_math, 60)
    assert ours[-1] < 0.99 * ours[0], "it does not learn"
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    assert worst < 0.01, f"losses differ by up to {worst:.1%}: {ours[::10]} and {theirs[::10]}"


def test_head_dims_far_apart_have_the_gradients_of_padded_ones() -> None:
    q, k, v = (torch.randn(1, 65, 2, d, device=DEVICE).bfloat16().requires_grad_() for d in (16, 16, 256))
    wide = [F.pad(x, (0, 8)) for x in (q, k)]
    outs = flashgen.attention(q, k, v), flashgen.attention(*wide, v, softmax_scale=0.25)
    given, expected = (torch.autograd.grad(out.sum(), (q, k, v)) for out in outs)  # type: ignore[union-attr]
    for got, want in zip((outs[0], *given), (outs[1], *expected), strict=True):
        torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
