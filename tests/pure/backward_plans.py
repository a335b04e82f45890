"""How the tests of backward plans ask for one."""

from __future__ import annotations

from flashgen.generator import BackwardPlan, BackwardRequest, KernelSpec, plan_backward


def backward(qk: int, v: int | None = None, mask: str = "full", **changes: object) -> BackwardPlan:
    """The plan of these head dims in bf16, with ``changes`` as its explicit choices."""
    spec = KernelSpec.backward(head_dim=qk, head_dim_v=v, mask=mask)
    return plan_backward(spec, BackwardRequest(**changes))  # type: ignore[arg-type]
