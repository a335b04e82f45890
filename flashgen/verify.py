"""Run kernels against the reference: the acceptance rule, bit equality from run to run, and no stray write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgen.backward_cases import BackwardCase, backward_cases
from flashgen.backward_kernel import BackwardKernel
from flashgen.callable_kernel import Kernel
from flashgen.cases import Case, cases
from flashgen.errors import DeviceError
from flashgen.guarded import GUARD, NAN, guarded_rows, rows_kept, same_bits
from flashgen.testing import Verdict, judge
from flashgen.testing_backward import GradientVerdict
from flashgen.verify_backward import run_backward_case

AnyKernel = Kernel | BackwardKernel


@dataclass(frozen=True)
class Failure:
    """A case that went wrong, and how."""

    case: str
    reason: str


@dataclass(frozen=True)
class Verification:
    """How one kernel did. ``worst_error`` is the largest share of the allowed max error: above 1 is wrong."""

    kernel: AnyKernel
    device: str
    cases: int
    worst_error: float
    worst_l2: float
    failures: tuple[Failure, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every case passed."""
        return not self.failures

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name


def device_name(device: torch.device) -> str:
    """The GPU's name, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def verify(
    kernels: Iterable[AnyKernel],
    *,
    device: str | torch.device = "cuda",
    on_done: Callable[[Verification], None] | None = None,
) -> list[Verification]:
    """Verify each kernel in turn, about a second each; ``on_done`` hears of each as it is done.

    A kernel that fails does not stop the others. DeviceError when there is no GPU to run on.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "no CUDA device is available here: verify needs the GPU that the kernels are for; "
            "--device cpu tries the CPU path"
        )
    done = []
    for kernel in kernels:
        done.append(verify_kernel(kernel, place))
        if on_done is not None:
            on_done(done[-1])
    return done


def verify_kernel(
    kernel: AnyKernel, device: torch.device, which: Sequence[Case | BackwardCase] | None = None
) -> Verification:
    """Run one kernel on its cases, or on those given."""
    start = time.perf_counter()
    todo = _cases(kernel) if which is None else which
    failures: list[Failure] = []
    worst_error = worst_l2 = 0.0
    for seed, case in enumerate(todo):
        try:
            verdict, reason = _run(kernel, case, device, seed)
        except Exception as error:  # a launch that fails is a result too, and the other kernels still have theirs
            failures.append(Failure(str(case), f"{type(error).__name__}: {error}"))
            continue
        if not verdict.ok:
            reason = str(verdict)
        if reason:
            failures.append(Failure(str(case), reason))
        worst_error = max(worst_error, verdict.share)
        worst_l2 = max(worst_l2, verdict.l2_error)
    seconds = time.perf_counter() - start
    return Verification(kernel, device_name(device), len(todo), worst_error, worst_l2, tuple(failures), seconds)


def _cases(kernel: AnyKernel) -> Sequence[Case | BackwardCase]:
    return backward_cases(kernel.plan) if isinstance(kernel, BackwardKernel) else cases(kernel.plan)


def _run(
    kernel: AnyKernel, case: Case | BackwardCase, device: torch.device, seed: int
) -> tuple[Verdict | GradientVerdict, str]:
    if isinstance(kernel, BackwardKernel):
        if not isinstance(case, BackwardCase):
            raise TypeError(f"{kernel.name} is a backward: got a {type(case).__name__}; expected a BackwardCase")
        return run_backward_case(kernel, case, device, seed)
    if isinstance(case, BackwardCase):
        raise TypeError(f"{kernel.name} is a forward: got a BackwardCase; expected a Case")
    return run_case(kernel, case, device, seed)


def run_case(kernel: Kernel, case: Case, device: torch.device, seed: int) -> tuple[Verdict, str]:
    """The verdict on one case, and what else was wrong with it ("" = nothing)."""
    q, k, v = case.inputs(kernel.plan, device, seed)
    causal = kernel.spec.mask == "causal"
    runs = []
    for _ in range(2):
        room, out, lse_room, lse = _results(q, v.shape[3])
        kernel.into(q, k, v, out, lse, softmax_scale=case.softmax_scale)
        runs.append((room, out, lse_room, lse))
    (room, out, lse_room, lse), (room2, _, lse_room2, _) = runs
    verdict = judge(out, lse, q, k, v, causal=causal, softmax_scale=case.softmax_scale)
    if not (same_bits(room, room2) and same_bits(lse_room, lse_room2)):
        return verdict, "two runs on the same input differ"
    if not (rows_kept(room) and bool(lse_room[lse.numel() :].isnan().all())):
        return verdict, "memory outside the result was written to"
    return verdict, ""


def _results(q: Tensor, head_dim_v: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(room, out in it, room, lse in it), full of NaN so that what is not written shows."""
    batch, seqlen, heads, _ = q.shape
    room, out = guarded_rows(q, (batch, seqlen, heads, head_dim_v))
    lse_room = q.new_full((batch * heads * seqlen + GUARD,), NAN, dtype=torch.float32)
    lse = lse_room[: batch * heads * seqlen].view(batch, heads, seqlen)
    return room, out, lse_room, lse
