"""Run kernels against the reference: the acceptance rule, bit equality from run to run, and no stray write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashgen.callable_kernel import Kernel
from flashgen.cases import NAN, Case, cases
from flashgen.errors import DeviceError
from flashgen.testing import Verdict, judge

GUARD = 128  # rows of NaN before and behind out, and numbers behind lse, that no kernel may touch


@dataclass(frozen=True)
class Failure:
    """A case that went wrong, and how."""

    case: str
    reason: str


@dataclass(frozen=True)
class Verification:
    """How one kernel did. ``worst_error`` is the largest share of the allowed max error: above 1 is wrong."""

    kernel: Kernel
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
    kernels: Iterable[Kernel],
    *,
    device: str | torch.device = "cuda",
    on_done: Callable[[Verification], None] | None = None,
) -> list[Verification]:
    """Verify each kernel in turn, about a second each; ``on_done`` hears of each as it is done.

    A kernel that fails does not stop the others. DeviceError when there is no GPU to run on.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError("no CUDA device is available here: verify needs the GPU that the kernels are for")
    done = []
    for kernel in kernels:
        done.append(verify_kernel(kernel, place))
        if on_done is not None:
            on_done(done[-1])
    return done


def verify_kernel(kernel: Kernel, device: torch.device, which: Sequence[Case] | None = None) -> Verification:
    """Run one kernel on its cases, or on those given."""
    start = time.perf_counter()
    todo = cases(kernel.plan) if which is None else which
    failures: list[Failure] = []
    worst_error = worst_l2 = 0.0
    for seed, case in enumerate(todo):
        try:
            verdict, reason = run_case(kernel, case, device, seed)
        except Exception as error:  # a launch that fails is a result too, and the other kernels still have theirs
            failures.append(Failure(str(case), f"{type(error).__name__}: {error}"))
            continue
        if not verdict.ok:
            reason = str(verdict)
        if reason:
            failures.append(Failure(str(case), reason))
        if verdict.max_allowed > 0:
            worst_error = max(worst_error, verdict.max_error / verdict.max_allowed)
        worst_l2 = max(worst_l2, verdict.l2_error)
    seconds = time.perf_counter() - start
    return Verification(kernel, device_name(device), len(todo), worst_error, worst_l2, tuple(failures), seconds)


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
    outside = (room[:, :GUARD], room[:, GUARD + q.shape[1] :], lse_room[lse.numel() :])
    if not all(bool(x.isnan().all()) for x in outside):
        return verdict, "memory outside the result was written to"
    return verdict, ""


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality bit by bit, so that NaN equals itself and 0 is not -0."""
    kind = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.view(kind), b.view(kind))


def _results(q: Tensor, head_dim_v: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(room, out in it, room, lse in it), full of NaN so that what is not written shows."""
    batch, seqlen, heads, _ = q.shape
    room = q.new_full((batch, seqlen + 2 * GUARD, heads, head_dim_v), NAN)
    lse_room = q.new_full((batch * heads * seqlen + GUARD,), NAN, dtype=torch.float32)
    lse = lse_room[: batch * heads * seqlen].view(batch, heads, seqlen)
    return room, room[:, GUARD : GUARD + seqlen], lse_room, lse
