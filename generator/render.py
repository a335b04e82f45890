"""A plan to the text of its .cu file. The one place that imports jinja2."""

from __future__ import annotations

import re
from functools import lru_cache

import jinja2

from . import paths
from .plan import AnyPlan, KernelPlan
from .request import Scheduler
from .spec import Dtype, Mask, Op

TEMPLATES = {Op.attention_fwd: "attention_fwd.cu.jinja", Op.attention_bwd: "attention_bwd.cu.jinja"}
ELEMENTS = {Dtype.fp16: "cutlass::half_t", Dtype.bf16: "cutlass::bfloat16_t"}
MASKS = {Mask.full: "flashgen::FullMask", Mask.causal: "flashgen::CausalMask"}
SCHEDULERS = {
    Scheduler.single: "flashgen::SingleTileScheduler",
    Scheduler.static: "flashgen::StaticPersistentScheduler",
    Scheduler.dynamic: "flashgen::DynamicPersistentScheduler",
}


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(paths.TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # C++, not HTML; nothing that a user typed gets here but the cleaned origin
    )


def render(plan: AnyPlan, origin: str = "") -> str:
    """The CUDA C++ source of a plan: the same plan and origin give the same text, on any machine and day.

    ``origin`` (``configs/sm90/attention_fwd_d128.yaml:2``) is shown in the header comment and changes nothing else.
    """
    return _environment().get_template(TEMPLATES[plan.spec.op]).render(
        plan=plan,
        origin=comment_text(origin),
        element=ELEMENTS[plan.spec.dtype],
        mask_type=MASKS[plan.spec.mask],
        **({"scheduler_type": SCHEDULERS[plan.scheduler]} if isinstance(plan, KernelPlan) else {}),
    )  # fmt: skip


def comment_text(origin: str, limit: int = 200) -> str:
    """An origin as it may stand in a C++ comment: nothing that could end or continue it, and no absolute path."""
    relative = re.sub(r"^([A-Za-z]:)?[\\/].*[\\/]", "", origin)
    return re.sub(r"[^A-Za-z0-9_.:/()+ -]", "_", relative).replace("//", "/").strip()[-limit:]
