"""Configs as text: a commented start for a new kernel, and a plan written out in full."""

from __future__ import annotations

from collections.abc import Sequence

from .backward_plan import BackwardPlan
from .plan import AnyPlan, plan
from .schema import PLAN_KEYS
from .spec import KernelSpec, Op, word


def new_config(
    head_dim: int,
    arch: str = "sm90a",
    *,
    head_dim_v: int | None = None,
    kernel: str = "attention_fwd",
    dtype: Sequence[str] = ("bf16", "fp16"),
    mask: Sequence[str] = ("full", "causal"),
) -> str:
    """A commented YAML config for a head dim, ready for ``flashgen build``. Raises what the config would raise."""
    specs = [
        KernelSpec.forward(head_dim=head_dim, head_dim_v=head_dim_v, dtype=one, mask=which, arch=arch)
        for one in dtype
        for which in mask
    ]
    backward = word(Op, kernel, "kernel") is Op.attention_bwd
    if backward:
        specs = [spec.backward_of(deterministic) for spec in specs for deterministic in (False, True)]
    first = plan(specs[0])
    what = "Attention's gradients" if backward else "Attention"
    return f"""\
# {what} for head dim {first.spec.head_dim_name[1:]}: {len(specs)} kernel(s). Build with: flashgen build THIS_FILE
# A list is swept: every combination is one kernel. `flashgen explain THIS_FILE` shows the plans.
kernel: {first.spec.op}
arch: {first.spec.arch}
dtype: {_list(dtype)}
head_dim: {_head_dim(first.spec)}
mask: {_list(mask)}
{FEATURES if backward else ""}
# Everything below may be left out. auto takes the measured best, else that of a cost model; a value is honoured or
# refused, never changed.
schedule: {first.spec.schedule}
{_choices(first)}"""


# A list of lists is a sweep as well: each kernel once as fast as can be, once the same bits on every run.
FEATURES = "features: [[], [deterministic]]\n"


def _choices(first: AnyPlan) -> str:
    tile = f"tile: auto        # {{m: {first.block_m}, n: {first.block_n}}} here; "
    if isinstance(first, BackwardPlan):
        return f"""\
{tile}m is 64, 80 or 128, n 128, or 64 with split_roles
split_roles: auto # {str(first.split_roles).lower()} here: the warpgroups share keys, and one holds dV, the other dK
stages_q: auto    # blocks of Q in flight; {first.stages_q} here
stages_do: auto   # blocks of dO in flight; {first.stages_do} here
"""
    return f"""\
{tile}m is 64 * warpgroups, n a multiple of 16
stages: auto      # blocks of K and V in flight; {first.stages} here
scheduler: auto   # single, static or dynamic
"""


# Keys that are not a field of the plan of the same name.
STRUCTURED = {
    "tile": "{{m: {plan.block_m}, n: {plan.block_n}}}",
    "warpgroups": "{plan.consumer_warpgroups}",
    "registers": "{{producer: {plan.producer_registers}, consumer: {plan.consumer_registers}}}",
    "swizzle": "{{qk: {plan.swizzle_qk}, v: {plan.swizzle_v}}}",
}


def to_yaml(plan: AnyPlan) -> str:
    """A plan as one YAML document with every choice explicit: loading and planning it gives the same plan."""
    spec = plan.spec
    lines = [
        f"kernel: {spec.op}",
        f"schedule: {spec.schedule}",
        f"arch: {spec.arch}",
        f"dtype: {spec.dtype}",
        f"head_dim: {_head_dim(spec)}",
        f"mask: {spec.mask}",
        f"features: {_list(spec.features)}",
        f"keys: {_keys(spec)}",
    ]
    for key in PLAN_KEYS[spec.op]:
        if key in STRUCTURED:
            lines.append(f"{key}: " + STRUCTURED[key].format(plan=plan))
        else:
            value = getattr(plan, key)
            lines.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value}")
    return "\n".join(lines) + "\n"


def _head_dim(spec: KernelSpec) -> str:
    if spec.head_dim_qk == spec.head_dim_v:
        return str(spec.head_dim_qk)
    return f"{{qk: {spec.head_dim_qk}, v: {spec.head_dim_v}}}"


def _keys(spec: KernelSpec) -> str:
    below = "" if spec.keys_below is None else f", below: {spec.keys_below}"
    return f"{{from: {spec.keys_from}{below}}}"


def _list(words: Sequence[str]) -> str:
    return f"[{', '.join(words)}]"
