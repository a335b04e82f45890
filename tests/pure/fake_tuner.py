"""A machine for searches that compiles and times nothing: a formula says how fast a plan is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from flashgen.bench_grid import Shape
from flashgen.build import BuildResult
from flashgen.errors import CompileError
from flashgen.generator import AnyPlan, BackwardPlan, ConfigEntry, KernelPlan, KernelSpec
from flashgen.generator.search import label
from flashgen.kernel import BuiltKernel
from flashgen.resources import Resources
from flashgen.toolchain import Toolchain
from flashgen.tune_space import Options
from flashgen.tune_trials import CandidateError, Progress, Times

SPEC = KernelSpec.forward(head_dim=128, mask="causal")
BACKWARD = SPEC.backward_of()
TOOLS = Toolchain("13.0.88", (), "4.2.0", "3.1.4", "13.1", "0" * 64)
SMALL = Options(budget=60, keep=2, repetitions=3, finals=4)


def shape(seqlen: int, direction: str = "fwd") -> Shape:
    return Shape("causal", 128, 1, 16, 16, seqlen, seqlen, direction=direction)


def milliseconds(made: KernelPlan, at: Shape) -> float:
    """Long sequences want 160 keys a block and an early start, short ones 96 and one tile a block."""
    best = 160 if at.seqlen_k > 3000 else 96
    wrong = [made.block_m != 128, made.scheduler != ("dynamic" if best == 160 else "single"), made.rescale != "early"]
    wrong += [not made.early_start] if best == 160 else []
    return at.seqlen_k / 1000 * (1 + abs(made.block_n - best) / 200 + 0.02 * sum(wrong))


def backward_milliseconds(made: BackwardPlan, at: Shape) -> float:
    """By stages of q and dout alone: 3/1 is best for long sequences, 1/3 for short ones, 3/3 good for both."""
    if made.split_roles:
        return 1.3
    best = (3, 1) if at.seqlen_k > 3000 else (1, 3)
    stages = made.stages_q, made.stages_do
    return 0.90 if stages == best else 0.92 if stages == (3, 3) else 1.1 if stages == best[::-1] else 1.0


class Fake:
    """Compiles nothing and counts; the ``tricks`` change what a plan does."""

    name = "a made-up GPU"

    def __init__(self, speed: Callable[[Any, Shape], float] = milliseconds, **tricks: Any) -> None:
        self.speed, self.tricks = speed, tricks
        self.timed: list[tuple[AnyPlan, int, int]] = []
        self.verified: list[AnyPlan] = []

    def build(self, plans: Sequence[AnyPlan], on_progress: Progress) -> BuildResult:
        result = BuildResult()
        for made in plans:
            if self.tricks.get("broken", lambda _: False)(made):
                result.failed.append((ConfigEntry(made.spec, made.request, label(made)), CompileError("no\nlog")))
                continue
            spill = 8 if self.tricks.get("spills", lambda _: False)(made) else 0
            sha256 = hashlib.sha256(label(made).encode()).hexdigest()
            resources = Resources(168, spill, spill, 0, 0)
            result.ok.append(BuiltKernel(made, "", b"", sha256, resources, TOOLS, "", True, 0.0))
        on_progress(len(plans), "")
        return result

    def time(self, shape: Shape, kernels: Sequence[BuiltKernel], repetitions: int) -> Times:
        for built in kernels:
            if self.tricks.get("hangs", lambda _: False)(built.plan):
                raise CandidateError(built.plan, "it did not come back", fatal=True)
            if self.tricks.get("fails", lambda _: False)(built.plan):
                raise CandidateError(built.plan, "it does not launch")
        self.timed += [(built.plan, shape.seqlen_k, repetitions) for built in kernels[1:]]
        if len(self.timed) > self.tricks.get("interrupted_after", 10**6):
            raise KeyboardInterrupt
        values = [[self.speed(built.plan, shape)] * repetitions for built in kernels]
        return Times(values, [shape.seqlen_k / 900] * repetitions)

    def verify(self, built: BuiltKernel) -> str:
        self.verified.append(built.plan)
        return "case 3: off" if self.tricks.get("wrong", lambda _: False)(built.plan) else ""
