"""Configs as text: a commented start for a new kernel, and a plan written out in full."""

from __future__ import annotations

from collections.abc import Sequence

from .plan import KernelPlan, plan
from .spec import KernelSpec


def new_config(
    head_dim: int,
    arch: str = "sm90a",
    *,
    head_dim_v: int | None = None,
    dtype: Sequence[str] = ("bf16", "fp16"),
    mask: Sequence[str] = ("full", "causal"),
) -> str:
    """A commented YAML config for a head dim, ready for ``flashgen build``. Raises what the config would raise."""
    specs = [
        KernelSpec.forward(head_dim=head_dim, head_dim_v=head_dim_v, dtype=one, mask=which, arch=arch)
        for one in dtype
        for which in mask
    ]
    first = plan(specs[0])
    return f"""\
# Attention for head dim {first.spec.head_dim_name[1:]}: {len(specs)} kernel(s). Build with: flashgen build THIS_FILE
# A list is swept: every combination is one kernel. `flashgen explain THIS_FILE` shows the plans.
kernel: attention_fwd
arch: {first.spec.arch}
dtype: {_list(dtype)}
head_dim: {_head_dim(first.spec)}
mask: {_list(mask)}

# Everything below may be left out. auto takes the measured best, else that of a cost model; a value is honoured or
# refused, never changed.
schedule: {first.spec.schedule}
tile: auto        # {{m: {first.block_m}, n: {first.block_n}}} here; m is 64 * warpgroups, n a multiple of 16
stages: auto      # blocks of K and V in flight; {first.stages} here
scheduler: auto   # single, static or dynamic
"""


def to_yaml(plan: KernelPlan) -> str:
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
        f"tile: {{m: {plan.block_m}, n: {plan.block_n}}}",
        f"stages: {plan.stages}",
        f"stages_q: {plan.stages_q}",
        f"warpgroups: {plan.consumer_warpgroups}",
        f"registers: {{producer: {plan.producer_registers}, consumer: {plan.consumer_registers}}}",
        f"scheduler: {plan.scheduler}",
        f"overlap: {str(plan.overlap).lower()}",
        f"pingpong: {str(plan.pingpong).lower()}",
        f"rescale: {plan.rescale}",
        f"lazy_rescale: {str(plan.lazy_rescale).lower()}",
        f"early_start: {str(plan.early_start).lower()}",
        f"epilogue: {plan.epilogue}",
        f"swizzle: {{qk: {plan.swizzle_qk}, v: {plan.swizzle_v}}}",
    ]
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
