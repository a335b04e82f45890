"""The machine that a search runs on: compilers for its plans, and a GPU to time and verify them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from flashgen import bench
from flashgen.bench import Run, Shape, time_runs
from flashgen.bench_timing import HIDING_CYCLES
from flashgen.build import BuildResult, Outcome, build_all
from flashgen.errors import DeviceError
from flashgen.generator import AnyPlan, ConfigEntry, KernelSpec
from flashgen.generator.search import label
from flashgen.kernel import BuiltKernel
from flashgen.loading import AnyKernel, code_of, new_kernel
from flashgen.select import arch_of
from flashgen.tune_trials import CandidateError, Progress, Times
from flashgen.verify import device_name, verify_kernel

PATIENCE = 20.0  # seconds after which a kernel that has not come back is taken to hang
POLL = 0.0005  # seconds
CUDNN = "cudnn"


class Gpu:
    """The current CUDA device, for kernels of one arch. DeviceError when there is none, or one of another arch."""

    def __init__(self, spec: KernelSpec, jobs: int | None = None) -> None:
        if not torch.cuda.is_available():
            raise DeviceError(
                "no CUDA device is available here: tuning needs the GPU that the kernels are for; "
                "--compile-only compiles the candidates without one"
            )
        self._device = torch.device("cuda", torch.cuda.current_device())
        self.name = device_name(self._device)
        arch = arch_of(torch.cuda.get_device_capability(self._device), self.name)
        if arch != spec.arch:
            raise DeviceError(f"{spec.name} is for {spec.arch} and cannot be timed on {self.name}, which is {arch}")
        self._jobs = jobs
        self._kernels: dict[AnyPlan, AnyKernel] = {}

    def build(self, plans: Sequence[AnyPlan], on_progress: Progress) -> BuildResult:
        """Compile what the cache does not have, without the GPU."""
        return build_plans(plans, self._jobs, on_progress)

    def time(self, shape: Shape, kernels: Sequence[BuiltKernel], repetitions: int) -> Times:
        """Milliseconds of each repetition of each kernel, and of cuDNN, in turn; CandidateError when one fails.

        Of a backward: its three kernels together, and cuDNN's through autograd, which takes its time to queue it.
        """
        held = {str(index): self._kernel(built) for index, built in enumerate(kernels)}
        runs = bench.runs_on(shape, held, [CUDNN])
        for index, built in enumerate(kernels):
            self._try(built.plan, runs[str(index)])
        times = time_runs(runs, repetitions, HIDING_CYCLES if shape.direction == "bwd" else 0)
        return Times([times[name] for name in held], times.get(CUDNN))

    def verify(self, built: BuiltKernel) -> str:
        """What is wrong with a kernel's results, in a line; "" when they are right."""
        done = verify_kernel(self._kernel(built), self._device)
        if done.ok:
            return ""
        reason = f"{done.failures[0].case}: {done.failures[0].reason}".splitlines()[0]
        if _lost():
            raise CandidateError(built.plan, reason, fatal=True)
        return reason

    def _kernel(self, built: BuiltKernel) -> AnyKernel:
        if built.plan not in self._kernels:
            code = code_of(built)
            self._kernels[built.plan] = new_kernel(built.plan, lambda: code)
        return self._kernels[built.plan]

    def _try(self, plan: AnyPlan, run: Run) -> None:
        """Run it once. A kernel that hangs or faults takes this process's GPU with it, so its name must be known."""
        done = torch.cuda.Event()
        try:
            run()
            done.record()
            end = time.monotonic() + PATIENCE
            while not done.query():
                if time.monotonic() > end:
                    raise CandidateError(plan, f"it did not come back within {PATIENCE:.0f} seconds", fatal=True)
                time.sleep(POLL)
        except RuntimeError as error:
            if isinstance(error, CandidateError):
                raise
            raise CandidateError(plan, str(error).splitlines()[0], fatal=_lost()) from error


def build_plans(plans: Sequence[AnyPlan], jobs: int | None, on_progress: Progress) -> BuildResult:
    """Compile plans into the cache, in parallel; one that spills is built all the same."""
    entries = [ConfigEntry(plan.spec, plan.request, label(plan)) for plan in plans]

    def count(outcome: Outcome, done: int, total: int) -> None:
        on_progress(done, outcome.entry.origin)

    return build_all(entries, None, jobs, count, strict=False)


def _lost() -> bool:
    """Whether the context is gone: every later call fails."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
