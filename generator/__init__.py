"""YAML to CUDA text: specs, plans and the rendered source. Pure: it needs neither torch nor CUDA."""

from .backward_plan import BackwardPlan
from .backward_planner import plan_backward
from .config import ConfigEntry, load_config, shipped_configs
from .errors import ConfigError, FlashgenError, NotAvailableError, PlanError
from .explain import Explanation, describe
from .new import new_config, to_yaml
from .plan import AnyPlan, Epilogue, KernelPlan, PlanRequest, Rescale, Scheduler, plan, plan_entry, plan_forward
from .render import render
from .request import AnyRequest, BackwardRequest
from .schema import json_schema
from .spec import Arch, Dtype, Feature, KernelSpec, Mask, Op, Schedule

__all__ = [
    "AnyPlan",
    "AnyRequest",
    "Arch",
    "BackwardPlan",
    "BackwardRequest",
    "ConfigEntry",
    "ConfigError",
    "Dtype",
    "Epilogue",
    "Explanation",
    "Feature",
    "FlashgenError",
    "KernelPlan",
    "KernelSpec",
    "Mask",
    "NotAvailableError",
    "Op",
    "PlanError",
    "PlanRequest",
    "Rescale",
    "Schedule",
    "Scheduler",
    "describe",
    "json_schema",
    "load_config",
    "new_config",
    "plan",
    "plan_backward",
    "plan_entry",
    "plan_forward",
    "render",
    "shipped_configs",
    "to_yaml",
]
