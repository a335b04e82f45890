"""The ops as PyTorch sees them on CUDA: opcheck, torch.compile, fake tensors, modes, layouts of results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._triton import has_triton

import flashgen
from flashgen import calls, counters
from flashgen.cases import LAYOUTS
from flashgen.generator import KernelPlan
from tests.device.helpers import MASKS, Complaints, difference, inputs, kernel_of, plan_for, run

OPS = ("attention_fwd", "attention_fwd_lse")


def kernels() -> list[KernelPlan]:
    plans = [plan_for(dims, "bf16", mask, 300) for dims in (16, 64) for mask in MASKS]
    return [*plans, plan_for((64, 128), "bf16", "causal", 300)]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", ["dense", "transposed", "surrounded"])
def test_opcheck(op: str, layout: str) -> None:
    assert flashgen.attention is not None  # registers the ops
    q, k, v = LAYOUTS[layout](*inputs(plan_for(16, "bf16", "causal", 300), 2, (65, 129), (4, 2)))
    result = torch.library.opcheck(getattr(torch.ops.flashgen, op).default, (q, k, v, True, 0.3))
    assert set(result.values()) == {"SUCCESS"}, result


def model(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out, lse = flashgen.attention(q * 2, k, v, causal=True, return_lse=True)
    return out, lse, out.float().sum(-1) + lse.transpose(1, 2).clamp(min=-1e3)


@pytest.fixture
def inductor() -> Iterator[None]:
    """torch.compile's default backend, with nothing compiled yet."""
    if not (has_triton() and (shutil.which("cc") or shutil.which("gcc"))):
        pytest.skip("inductor needs Triton and a C compiler")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_is_eager(compiled: Any, lengths: list[tuple[int, int]]) -> None:
    complaints = Complaints()
    for seed, seqlens in enumerate(lengths):
        for layout in ("dense", "transposed"):
            tensors = LAYOUTS[layout](*inputs(plan_for(64, "bf16", "causal", 300), 2, seqlens, (4, 2), seed=seed))
            got, expected = compiled(*tensors), model(*tensors)
            complaints.same(f"{seqlens}, {layout}", got[:2], expected[:2])
            torch.testing.assert_close(got[2], expected[2])
            same = got[0].stride() == expected[0].stride()
            complaints.that(f"{seqlens}, {layout}", "" if same else f"{got[0].stride()}, not {expected[0].stride()}")
    complaints.settle(4 * len(lengths))


@pytest.mark.usefixtures("inductor")
def test_compiled_in_one_graph() -> None:
    compiled_is_eager(torch.compile(model, fullgraph=True), [(203, 239)])


@pytest.mark.usefixtures("inductor")
def test_compiled_with_dynamic_shapes() -> None:
    compiled_is_eager(
        torch.compile(model, fullgraph=True, dynamic=True), [(203, 239), (64, 64), (300, 129), (1000, 777)]
    )


@pytest.fixture
def new_counters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No tile counter yet, as in a process that has just started."""
    calls.forget_calls()
    for memo in ("_slots", "_unused"):
        monkeypatch.setattr(counters, memo, {})
    yield
    torch.cuda.synchronize()
    calls.forget_calls()  # launches that point to counters which are forgotten now


@pytest.mark.usefixtures("inductor", "new_counters")
def test_compiled_with_cuda_graphs() -> None:
    """The first calls run in the memory pool of graphs, where nothing may be left that torch does not know of."""
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    plan = plan_for(64, "bf16", "causal", 300)
    q, k, v = inputs(plan, 2, (1000, 300), (8, 2))
    complaints = Complaints()
    for seed in range(6):
        for x, y in zip((q, k, v), inputs(plan, 2, (1000, 300), (8, 2), seed=seed), strict=True):
            x.copy_(y)
        torch.compiler.cudagraph_mark_step_begin()
        got = [x.clone() for x in compiled(q, k, v)]
        complaints.same(f"step {seed}", got[:2], run(kernel_of(plan), q * 2, k, v))
    complaints.settle(6)


@pytest.mark.parametrize("head_dims", [(64, 64), (64, 128)])
@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_fake_tensors_tell_what_real_ones_give(layout: str, head_dims: tuple[int, int]) -> None:
    dims = head_dims if head_dims[0] != head_dims[1] else head_dims[0]
    real = LAYOUTS[layout](*inputs(plan_for(dims, "bf16", "causal", 300), 2, (65, 129), (4, 2)))
    results = flashgen.attention(*real, causal=True, return_lse=True)
    with FakeTensorMode() as mode:
        fakes = flashgen.attention(*(mode.from_tensor(x) for x in real), causal=True, return_lse=True)
    for name, got, fake in zip(("out", "LSE"), results, fakes, strict=True):
        told = tuple(fake.shape), fake.stride(), fake.dtype, fake.device
        assert told == (tuple(got.shape), got.stride(), got.dtype, got.device), name


def test_out_has_the_layout_of_a_dense_q_alone() -> None:
    plan, other = plan_for(64, "bf16", "causal", 300), plan_for((64, 128), "bf16", "causal", 300)
    q, k, v = inputs(plan, 2, (65, 129), (4, 2))
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert flashgen.attention(turned, k, v).stride() == turned.stride()
    assert flashgen.attention(torch.cat((q, q), dim=2)[:, :, :4], k, v).is_contiguous()
    wide = inputs(other, 2, (65, 129), (4, 2))[2]
    out = flashgen.attention(turned, k, wide, causal=True)
    assert out.shape == (2, 65, 4, 128)
    assert out.is_contiguous()


def test_inference_mode_and_no_grad_change_nothing() -> None:
    q, k, v = inputs(plan_for(64, "bf16", "causal", 300), 2, (203, 239), (4, 2))
    expected = flashgen.attention(q, k, v, causal=True, return_lse=True)
    calls.forget_calls()
    with torch.inference_mode():
        within = flashgen.attention(q, k, v, causal=True, return_lse=True)
        a, b, c = (x.clone() for x in (q, k, v))
        made_within = flashgen.attention(a, b, c, causal=True, return_lse=True)
        bound = tuple(x.clone() for x in flashgen.bind(a, b, c, causal=True, return_lse=True)())
    q.requires_grad_()
    with torch.no_grad():
        without = flashgen.attention(q, k, v, causal=True, return_lse=True)
    for name, got in (("inference", within), ("its tensors", made_within), ("bind", bound), ("no_grad", without)):
        wrong = difference(got, expected)
        assert not wrong, f"{name}: {wrong}"
        assert not got[0].requires_grad, name


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_input_that_requires_grad_raises(op: str, which: int) -> None:
    tensors = list(inputs(plan_for(64, "bf16", "full", 300), 1, (5, 7), (2, 2)))
    flashgen.attention(*tensors, return_lse=op == OPS[1])  # remembered, and still refused next time
    tensors[which].requires_grad_()
    with pytest.raises(flashgen.NotAvailableError, match="requires_grad=True"):
        getattr(torch.ops.flashgen, op)(*tensors)
