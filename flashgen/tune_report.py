"""What a search found, as YAML to build from and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from flashgen.generator import AnyPlan, to_yaml
from flashgen.generator.request import KEYS
from flashgen.generator.search import label, shortest
from flashgen.tune import Found, Range, Search

_ALWAYS = {"kernel", "schedule", "arch", "dtype", "head_dim", "mask", "tile"}


def to_config(ranges: Sequence[Range], gpu: str, nvrtc: str) -> str:
    """One YAML document a range, with what was measured above each. It loads as just these plans."""
    return "---\n".join(_document(each, gpu, nvrtc) for each in ranges)


def figures(found: Found) -> str:
    """What was measured of one shape, in a line."""
    measured = found.measured
    cudnn = "" if measured.over_cudnn is None else f", {measured.over_cudnn:.3f} x cuDNN"
    return f"{found.shape.name}: {found.tflops:.0f} TFLOP/s, {measured.over_incumbent:.3f} x incumbent{cudnn}"


def ranged_plan(each: Range) -> AnyPlan:
    """A range's plan under the name that has its range."""
    spec = replace(each.plan.spec, keys_from=each.first, keys_below=each.below)
    return replace(each.plan, spec=spec)


def to_document(search: Search, ranges: Sequence[Range], gpu: str, nvrtc: str) -> dict[str, Any]:
    """All of it, as JSON takes it."""
    return {
        "name": search.spec.name,
        "gpu": gpu,
        "nvrtc_version": nvrtc,
        "plans_tried": len(search.tried),
        "refused": [{"plan": label(made), "why": why} for made, why in search.trials.refused.items()],
        "ranges": [
            {
                "from": each.first,
                "below": each.below,
                "plan": each.plan.request.explicit,
                "sha256": search.trials.built[each.plan].sha256,
                "config": to_config([each], gpu, nvrtc),
                "shapes": [found_document(found) for found in each.found],
            }
            for each in ranges
        ],
    }


def found_document(found: Found) -> dict[str, Any]:
    """The best of one shape, as JSON takes it."""
    measured = found.measured
    return asdict(measured) | {
        "shape": found.shape.name,
        "plan": found.plan.request.explicit,
        "incumbent_plan": found.incumbent.request.explicit,
        "verified": found.verified,
        "tflops": found.tflops,
        "over_incumbent": measured.over_incumbent,
        "over_cudnn": measured.over_cudnn,
    }


def _document(each: Range, gpu: str, nvrtc: str) -> str:
    lines = [f"# Tuned on {gpu} with NVRTC {nvrtc}. Medians, in turn with the incumbent and cuDNN, L2 flushed:"]
    lines += [f"# {figures(found)}" for found in each.found]
    made = ranged_plan(each)
    keys = _ALWAYS | {KEYS.get(name, name) for name in shortest(made).explicit}
    keys |= {"features"} if made.spec.features else set()
    keys |= {"keys"} if made.spec != made.spec.any_length else set()
    return "\n".join([*lines, *(line for line in to_yaml(made).splitlines() if line.split(":")[0] in keys)]) + "\n"
