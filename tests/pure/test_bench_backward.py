"""What is timed of a backward, on CPU tensors: autograd of flashgen and of peers, kernels alone, memory, cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

import flashgen
from flashgen import bench as bench_module
from flashgen import host_time
from flashgen.bench import Row, bench
from flashgen.bench_backward import borrowed_bytes
from flashgen.bench_grid import BACKWARD_GRID, GRID, Shape
from flashgen.bench_timing import HIDING_CYCLES, WARM_UP, time_runs
from flashgen.generator import BackwardPlan, KernelSpec
from flashgen.peers import LeftOutError, run_of
from tests.pure.fake_timer import Timer, inputs

SHAPE = Shape("causal", 16, 1, 4, 2, 40, 40, 1.25, direction="bwd")


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    return Timer(monkeypatch)


def test_the_backwards_grid_is_the_forwards_with_bars_of_its_own() -> None:
    assert len(BACKWARD_GRID) == 48
    names = {shape.name.removeprefix("fwd ") for shape in GRID}
    assert [shape.name for shape in BACKWARD_GRID if shape.name.removeprefix("bwd ") not in names] == []
    bars = {shape.name: shape.bar for shape in BACKWARD_GRID}
    assert bars["bwd d64 full B32 H32 S512"] == 1.198
    assert bars["bwd d256 causal B1 H8 S16384"] == 1.214
    assert bars["bwd d160 full B4 H16 S4096"] == 1.606


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_backward_has_two_and_a_half_times_the_operations(mask: str) -> None:
    def flop(direction: str, head_dim_v: int | None = None) -> float:
        return Shape(mask, 64, 2, 4, 2, 100, 300, None, head_dim_v, direction=direction).flop

    assert flop("bwd") == 2.5 * flop("fwd")
    scores = 2 * 4 * 100 * 300 / (2 if mask == "causal" else 1)
    assert flop("bwd", 32) == 2 * scores * (3 * 64 + 2 * 32)


def test_a_shape_knows_its_kernels(timer: Timer) -> None:
    plain = KernelSpec.backward(head_dim=16, mask="causal")
    assert (SHAPE.spec(), SHAPE.spec(deterministic=True)) == (plain, plain.backward_of(True))
    half = Shape("full", 64, 1, 1, 1, 8, 8, None, 128, "fp16")
    assert half.spec() == KernelSpec.forward(head_dim=64, head_dim_v=128, dtype="fp16")


def test_flashgen_and_peers_are_differentiated_by_autograd(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    grad = torch.autograd.grad

    def watched(out: Tensor, leaves: Any, dout: Tensor, retain_graph: bool) -> Any:
        asked.append((out.shape, [x.shape for x in leaves], dout.dtype, retain_graph))
        return grad(out, leaves, dout, retain_graph=retain_graph)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    done: list[str] = []
    refused: list[tuple[str, str]] = []
    rows = bench(
        [SHAPE],
        backends=["cudnn", "efficient"],
        repetitions=4,
        deterministic=True,
        on_done=lambda shape, _: done.append(shape.name),
        on_left_out=lambda _, name, why: refused.append((name, why)),
    )
    assert [row.implementation for row in rows] == ["flashgen", "flashgen deterministic", "cudnn"]
    assert done == [SHAPE.name] == [SHAPE.name for _ in {row.shape for row in rows}]
    assert [name for name, _ in refused] == ["efficient"], "the CPU has none"
    q, k, v = ((1, 40, 4, 16), (1, 40, 2, 16), (1, 40, 2, 16))
    assert {tuple(map(tuple, leaves)) for _, leaves, _, _ in asked} == {(q, k, v)}
    assert {(tuple(shape), dtype, kept) for shape, _, dtype, kept in asked} == {(q, torch.bfloat16, True)}
    for row in rows:
        assert (row.direction, row.bar) == ("bwd", 1.25)
        assert row.tflops == pytest.approx(SHAPE.flop / row.milliseconds / 1e9)
        assert row.disagreement < 0.02
    assert rows[0].disagreement == 0
    mine, steady, cudnn = rows
    assert mine.over_cudnn == pytest.approx(cudnn.milliseconds / mine.milliseconds)
    assert steady.deterministic_cost == pytest.approx(steady.milliseconds / mine.milliseconds - 1)
    assert (mine.deterministic_cost, cudnn.deterministic_cost) == (None, None)
    assert [row.kernel for row in rows] == [SHAPE.spec().name, SHAPE.spec(deterministic=True).name, None]
    assert timer.slept == [HIDING_CYCLES] * 3 * (WARM_UP + 4), "autograd's own time is hidden"


def test_peers_give_the_gradients_of_the_same_attention(timer: Timer) -> None:
    q, k, v = inputs(SHAPE)
    dout = torch.randn(q.shape).to(q.dtype)
    got = run_of("cudnn", q, k, v, causal=True, dout=dout)()
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = flashgen.attention(*leaves, causal=True)
    for name, mine, theirs in zip("qkv", torch.autograd.grad(out, leaves, dout), got, strict=True):
        assert float((mine - theirs).float().norm() / mine.float().norm()) < 0.02, f"d{name}"
    assert not q.requires_grad, "others are timed on the same tensors"


def test_a_peer_without_a_backward_is_left_out(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashgen import peer_adapters

    class Module:
        @staticmethod
        def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
            return q.detach()

    monkeypatch.setattr(peer_adapters.importlib, "import_module", lambda name: Module)
    q, k, v = inputs(SHAPE)
    assert torch.equal(run_of("fa3", q, k, v, causal=True)(), q)
    with pytest.raises(LeftOutError, match=r"^it has no backward$"):
        run_of("fa3", q, k, v, causal=True, dout=q)


def test_given_kernels_run_by_themselves_on_the_shapes_of_their_problem(timer: Timer) -> None:
    kernels = [flashgen.get_kernel(SHAPE.spec(steady)) for steady in (False, True)]
    kernels += [flashgen.get_kernel(KernelSpec.backward(head_dim=24, mask="causal"))]
    kernels += [flashgen.get_kernel(KernelSpec.forward(head_dim=16, mask="causal"))]
    rows = bench([SHAPE], kernels=kernels, backends=["cudnn"], repetitions=2)
    plan = kernels[0].plan
    assert isinstance(plan, BackwardPlan)
    assert [row.implementation for row in rows] == [plan.label, f"{kernels[1].plan.label} deterministic", "cudnn"]
    assert all(row.disagreement < 0.02 for row in rows)
    assert [row.kernel for row in rows] == [kernels[0].name, kernels[1].name, None]


def test_a_forward_is_timed_as_ever(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Shape("causal", 16, 1, 4, 2, 40, 40)
    monkeypatch.setattr(
        bench_module, "bind", lambda q, k, v, causal: lambda: flashgen.attention(q, k, v, causal=causal)
    )
    rows = bench([forward], backends=["cudnn"], repetitions=2)
    assert [(row.implementation, row.direction, row.borrowed_bytes) for row in rows] == [
        ("flashgen", "fwd", None), ("cudnn", "fwd", None)
    ]  # fmt: skip
    assert rows[1].disagreement < 0.02
    assert timer.slept == []


def test_where_cudnn_refuses_a_shape_nothing_is_a_multiple_of_it(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two head dims, no bar: a row of such a grid shape has neither figure."""
    forward = Shape("causal", 24, 1, 4, 2, 40, 40, None, 16)
    monkeypatch.setattr(
        bench_module, "bind", lambda q, k, v, causal: lambda: flashgen.attention(q, k, v, causal=causal)
    )
    refused: list[tuple[str, str]] = []
    monkeypatch.setitem(host_time.BACKENDS, "cudnn", SDPBackend.CUDNN_ATTENTION)  # CPU tensors: it does not take them
    rows = bench(
        [forward], backends=["cudnn"], repetitions=2, on_left_out=lambda at, name, _: refused.append((at.name, name))
    )
    assert [(row.implementation, row.over_cudnn, row.bar) for row in rows] == [("flashgen", None, None)]
    assert refused == [(forward.name, "cudnn")]


def test_what_a_backward_borrows_is_its_peak_less_its_gradients(timer: Timer) -> None:
    timer.memory = (5000, 9000)
    gradients = tuple(torch.zeros(100, dtype=torch.bfloat16) for _ in range(3))
    assert borrowed_bytes(lambda: gradients) == 9000 - 5000 - 600
    timer.memory = (5000, 5100)
    assert borrowed_bytes(lambda: gradients) == 0
    timer.memory = (0, 1 << 30)
    rows: list[Row] = bench([SHAPE], backends=[], repetitions=2)
    assert rows[0].borrowed_bytes == (1 << 30) - 40 * 16 * 2 * (4 + 2 + 2)


def test_runs_take_turns_and_the_first_ones_do_not_count(timer: Timer) -> None:
    order: list[str] = []
    times = time_runs({name: (lambda name=name: order.append(name)) for name in "ab"}, 2, 7)
    assert order == ["a", "b"] * (WARM_UP + 2)
    assert timer.slept == [7] * len(order)
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}
    # Each pair of events is one further apart than the one before it; six came first.
    assert times == {"a": [4 * 6 + 1, 4 * 8 + 1], "b": [4 * 7 + 1, 4 * 9 + 1]}
