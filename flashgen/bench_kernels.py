"""Which kernels of flashgen's own are timed on a shape, and what a row says of the one that ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashgen.bench_grid import OURS, STEADY, Shape
from flashgen.generator import BackwardPlan
from flashgen.loading import AnyKernel, kernel_for


def own_kernels(shape: Shape, given: Sequence[AnyKernel] | None, deterministic: bool) -> dict[str, AnyKernel]:
    """flashgen's choice for a shape, or those given that are for it, by the names they have as implementations.

    Of a backward's shape the backwards alone; ``deterministic``: flashgen's choice of a deterministic one too.
    """
    backward = shape.direction == "bwd"
    if given is None:
        names = {OURS: False} | ({STEADY: True} if backward and deterministic else {})
        return {name: kernel_for(shape.spec(steady), shape.seqlen_k) for name, steady in names.items()}
    specs = (shape.spec(), shape.spec(deterministic=True)) if backward else (shape.spec(),)
    return {_label(kernel): kernel for kernel in given if kernel.spec.any_length in specs}


def _label(kernel: AnyKernel) -> str:
    plan = kernel.plan
    if isinstance(plan, BackwardPlan):
        return plan.label + (" deterministic" if plan.spec.deterministic else "")
    return f"{plan.label} {plan.scheduler} {plan.rescale} {plan.epilogue}"


def identity(kernel: AnyKernel | None, ran_on_gpu: bool) -> dict[str, Any]:
    """The fields of a Row that name the kernel; none for what is not ours. The CPU path has no machine code."""
    if kernel is None:
        return {}
    sha256 = kernel.code.sha256 if ran_on_gpu else None
    return {"kernel": kernel.name, "plan": kernel.plan.request.explicit, "sha256": sha256}
