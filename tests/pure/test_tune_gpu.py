"""What stands between a search and the GPU, made up here: kernels run on CPU tensors, events are instant."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from flashgen import bench, tune_gpu, verify
from flashgen.backward_cases import backward_cases
from flashgen.backward_kernel import BackwardKernel
from flashgen.bench_grid import Shape
from flashgen.bench_timing import HIDING_CYCLES
from flashgen.callable_kernel import Kernel
from flashgen.cases import cases
from flashgen.errors import DeviceError, LaunchError, NotAvailableError
from flashgen.generator import AnyPlan, BackwardRequest, KernelSpec, PlanRequest, plan
from flashgen.kernel import BuiltKernel
from flashgen.tune_gpu import Gpu
from flashgen.tune_trials import CandidateError, quiet
from tests.pure.fake_tuner import Fake

SPEC = KernelSpec.forward(head_dim=16, mask="causal")
SHAPE = Shape("causal", 16, 1, 2, 1, 40, 40)
PLANS = [plan(SPEC, PlanRequest(block_m=m, block_n=n)) for m, n in ((64, 16), (128, 32))]
BACKWARD = Shape("causal", 16, 1, 2, 1, 40, 40, direction="bwd")
BACKWARDS = [plan(SPEC.backward_of(), BackwardRequest(stages_q=count)) for count in (1, 2)]


class Event:
    come_back = True

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.come_back


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    cuda = {"is_available": True, "current_device": 0, "get_device_capability": (9, 0), "get_device_name": "Fake H200"}
    for name, value in (cuda | {"synchronize": None}).items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(tune_gpu, "PATIENCE", 0.01)
    sizes = ((1, 40, 2, 16), (1, 40, 1, 16), (1, 40, 1, 16))
    inputs = tuple(torch.randn(size, dtype=torch.bfloat16) for size in sizes)
    monkeypatch.setattr(bench, "_inputs", lambda shape: inputs)

    def time_runs(runs: dict[str, bench.Run], repetitions: int, sleep_cycles: int) -> dict[str, list[float]]:
        shapes = [tuple(x.shape for x in (run() if sleep_cycles else [run()])) for run in runs.values()]
        # Gradients of q, k and v, queued while the GPU sleeps, or out.
        assert shapes == [sizes if sleep_cycles else (sizes[0],)] * len(shapes)
        assert sleep_cycles in (0, HIDING_CYCLES)
        return {name: [float(index)] * repetitions for index, name in enumerate(runs)}

    monkeypatch.setattr(tune_gpu, "time_runs", time_runs)
    return Gpu(SPEC)


def built(plans: list[AnyPlan] = PLANS) -> list[BuiltKernel]:
    with quiet("", 0) as step:
        return Fake().build(plans, step).ok


def test_no_gpu_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="--compile-only"):
        Gpu(SPEC)


def test_a_gpu_of_another_kind_is_refused(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.name == "Fake H200"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    with pytest.raises(NotAvailableError, match=r"Fake H200 has compute capability 8\.0"):
        Gpu(SPEC)


def test_times_come_in_the_order_of_the_kernels(gpu: Gpu) -> None:
    times = gpu.time(SHAPE, built(), 3)
    assert times.kernels == [[0.0] * 3, [1.0] * 3]
    assert times.cudnn is None  # it takes no CPU tensors


def test_a_backward_is_timed_whole_beside_cudnns(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.time(BACKWARD, built(BACKWARDS), 3).kernels == [[0.0] * 3, [1.0] * 3]
    asked = []

    def run_of(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, dout: torch.Tensor):  # type: ignore[no-untyped-def]
        asked.append((name, causal, dout.shape))
        return lambda: (q, k, v)

    monkeypatch.setattr(bench, "run_of", run_of)
    times = gpu.time(BACKWARD, built(BACKWARDS), 3)
    assert (times.kernels, times.cudnn) == ([[0.0] * 3, [1.0] * 3], [2.0] * 3)
    assert asked == [("cudnn", True, (1, 40, 2, 16))]


def test_a_kernel_that_does_not_come_back_is_named(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "come_back", False)
    with pytest.raises(CandidateError, match="did not come back") as caught:
        gpu.time(SHAPE, built(), 3)
    assert (caught.value.plan, caught.value.fatal) == (PLANS[0], True)


@pytest.mark.parametrize("lost", [False, True])
def test_a_kernel_that_does_not_launch_is_named(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    def into(kernel: object, *_: object, **__: object) -> None:
        raise LaunchError("launching failed: out of resources\nmore")

    def synchronize() -> None:
        if lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Kernel, "into", into)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(CandidateError, match="out of resources") as caught:
        gpu.time(SHAPE, built(), 3)
    assert (caught.value.reason, caught.value.fatal) == ("launching failed: out of resources", lost)


def test_the_verdict_is_a_line(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_device", torch.device("cpu"))
    monkeypatch.setattr(verify, "cases", lambda plan: cases(plan)[:3])
    right, wrong = built()
    assert gpu.verify(right) == ""

    def into(kernel: object, q: object, k: object, v: object, out: torch.Tensor, *_: object, **__: object) -> None:
        out.zero_()

    monkeypatch.setattr(Kernel, "into", into)
    reason = gpu.verify(wrong)
    assert reason.startswith("batch 1, seqlen 1 x 1")
    assert "\n" not in reason


def test_gradients_are_judged_too(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_device", torch.device("cpu"))
    monkeypatch.setattr(verify, "backward_cases", lambda plan: backward_cases(plan)[2:4])  # quick ones
    right, wrong = built(BACKWARDS)
    assert gpu.verify(right) == ""
    whole = BackwardKernel.into

    def into(kernel: BackwardKernel, *given: torch.Tensor, **keywords: float) -> None:
        whole(kernel, *given, **keywords)
        given[-3][:, 5:] *= 1.25  # dq of all rows but a few

    monkeypatch.setattr(BackwardKernel, "into", into)
    reason = gpu.verify(wrong)
    assert "dq WRONG" in reason
    assert "\n" not in reason


def test_plans_are_built_under_their_labels(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[AnyPlan, str]] = []

    def build_all(entries, out_dir, jobs, on_progress, *, strict):  # type: ignore[no-untyped-def]
        assert (out_dir, strict) == (None, False)
        for done, entry in enumerate(entries, 1):
            on_progress(tune_gpu.Outcome(entry), done, len(entries))
            seen.append((plan(entry.spec, entry.request), entry.origin))
        return dataclasses.replace(tune_gpu.BuildResult())

    monkeypatch.setattr(tune_gpu, "build_all", build_all)
    told: list[tuple[int, str]] = []
    gpu.build(PLANS, lambda done, last: told.append((done, last)))
    assert [made for made, _ in seen] == PLANS
    assert told == [(1, seen[0][1]), (2, seen[1][1])]
    assert "64x16x2" in told[0][1]
