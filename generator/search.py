"""What a tuner tries of a forward, in order: tiles, then the knobs of the best of them, then knobs together. Pure.

Everything is a request with each choice explicit, and feasible: planning it gives the plan that is meant.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from .backward_plan import BackwardPlan
from .cost import SPARE_IF_COMPILED, cost
from .errors import PlanError
from .feasibility import BLOCK_N_MAX, BLOCK_N_STEP, MAX_WARPGROUPS, TileChoice
from .footprint import SWIZZLES, natural_swizzle
from .plan import AnyPlan, KernelPlan, plan, plan_forward
from .request import AnyRequest, Epilogue, PlanRequest, Rescale, Scheduler
from .spec import KernelSpec

MAX_STAGES_Q = 2  # a third tile of q has nothing to wait for
TOGETHER = 4  # knobs that are tried in all their combinations
# Knobs that only trade shared memory: left to the planner where another knob takes what they need.
SPARED = ("stages_q", "epilogue")
TILE = ("block_m", "block_n", "split_roles")  # what a config says in any case

Plan = TypeVar("Plan", bound=AnyPlan)


def planned(spec: KernelSpec, request: PlanRequest) -> KernelPlan | None:
    """The plan of a request, or None where it is not feasible."""
    try:
        return plan_forward(spec, request)
    except PlanError:
        return None


def tiles(spec: KernelSpec) -> list[PlanRequest]:
    """Every feasible tile with the planner's usual knobs, the cost model's favourites first.

    Each comes with both ways to rescale, and with whole rows where they are swizzled narrower: both decide what spills.
    """
    rows = range(64, 64 * MAX_WARPGROUPS + 1, 64)
    widths = range(BLOCK_N_STEP, BLOCK_N_MAX + 1, BLOCK_N_STEP)
    every = (planned(spec, PlanRequest(block_m=m, block_n=n)) for m, n in itertools.product(rows, widths))
    feasible = [made for made in every if made is not None]
    found: dict[KernelPlan, PlanRequest] = {}
    for made in sorted(feasible, key=lambda made: (cost(spec, _choice(made), SPARE_IF_COMPILED), -made.block_n)):
        for changes in ({}, {"rescale": _other(made)}, {"swizzle_qk": SWIZZLES[0], "swizzle_v": SWIZZLES[0]}):
            changed = _changed(made, changes)
            if changed is not None:
                found.setdefault(changed, changed.request)
    return list(found.values())


def neighbours(base: KernelPlan) -> list[PlanRequest]:
    """The plan with one knob changed, for every knob and every other value of it that is feasible."""
    found: dict[KernelPlan, PlanRequest] = {base: base.request}
    for name, value in _changes(base):
        made = _changed(base, {name: value})
        if made is not None:
            found.setdefault(made, made.request)
    return list(found.values())[1:]


def combinations(base: KernelPlan, better: Sequence[KernelPlan]) -> list[PlanRequest]:
    """What made plans better than the base, together: most of it first. ``better`` is best first."""
    changes = [_difference(base, other) for other in better[:TOGETHER]]
    found: dict[KernelPlan, PlanRequest] = {}
    for count in range(len(changes), 1, -1):
        for some in itertools.combinations(changes, count):
            merged: dict[str, Any] = {}
            for change in some:
                merged |= {name: value for name, value in change.items() if name not in merged}
            made = _changed(base, merged)
            if made is not None and made not in better and made != base:
                found.setdefault(made, made.request)
    return list(found.values())


def shortest(made: AnyPlan) -> AnyRequest:
    """The fewest explicit choices that give the plan: its tile, and the knobs that the planner would set otherwise."""
    kind, kept = type(made.request), made.request.explicit
    for name in list(kept):
        fewer = {other: value for other, value in kept.items() if other != name}
        if name not in TILE and _gives(kind(**fewer), made):
            kept = fewer
    return kind(**kept)


def label(made: AnyPlan) -> str:
    """A plan in one short line: its tile and the knobs that a search turns."""
    if isinstance(made, BackwardPlan):
        words = [f"{made.block_m}x{made.block_n}", f"q{made.stages_q}", f"do{made.stages_do}", f"ds{made.stages_ds}"]
        words += [f"dq{made.dq_passes}", *(["roles"] if made.split_roles else [])]
        words += [*(["kreg"] if made.keys_in_registers else []), *(["stores"] if made.stores_first else [])]
        words += ["order"] if made.keys_in_order and not made.spec.deterministic else []
        words += ["dynamic"] if made.persistent else []
        words += [] if made.mask_loops or made.split_roles else ["asks"]
    else:
        words = _forward_words(made)
    if made.swizzle_qk != SWIZZLES[0] or made.swizzle_v != SWIZZLES[0]:
        words.append(f"swizzle {made.swizzle_qk}/{made.swizzle_v}")
    return " ".join(words)


def _forward_words(made: KernelPlan) -> list[str]:
    words = [made.label, f"q{made.stages_q}", made.scheduler, made.rescale]
    words += ["lazy"] if made.lazy_rescale else []
    words += ["start"] if made.early_start else []
    words += ["pingpong"] if made.pingpong else []
    words += [made.epilogue]
    words += [] if made.overlap else ["apart"]
    return words


def _gives(request: AnyRequest, made: AnyPlan) -> bool:
    try:
        return plan(made.spec, request) == made
    except PlanError:
        return False


def _changes(base: KernelPlan) -> Iterator[tuple[str, Any]]:
    """(field, another value), those that were seen to matter most first; not all are feasible."""
    yield "early_start", not base.early_start
    yield "rescale", _other(base)
    yield from (("scheduler", other) for other in Scheduler if other is not base.scheduler)
    yield from (("stages", base.stages + step) for step in (1, -1))
    if base.consumer_warpgroups > 1:
        yield "pingpong", not base.pingpong
    yield from (("epilogue", other) for other in Epilogue if other is not base.epilogue)
    yield from (("stages_q", count) for count in range(1, MAX_STAGES_Q + 1) if count != base.stages_q)
    yield "lazy_rescale", not base.lazy_rescale
    element = base.spec.dtype.bytes
    for name, head_dim in (("swizzle_qk", base.spec.head_dim_qk), ("swizzle_v", base.spec.head_dim_v)):
        # Narrower than the natural one pads no less and copies in smaller pieces.
        natural = natural_swizzle(head_dim, element)
        yield from ((name, other) for other in SWIZZLES if other >= natural and other != getattr(base, name))


def _changed(base: KernelPlan, changes: dict[str, Any]) -> KernelPlan | None:
    """The base with these changes, at the price of what only saves room if it must be."""
    request = replace(base.request, **changes)
    made = planned(base.spec, request)
    if made is None:
        made = planned(base.spec, replace(request, **{name: None for name in SPARED if name not in changes}))
    return made


def _difference(base: KernelPlan, other: KernelPlan) -> dict[str, Any]:
    return {name: value for name, value in other.request.explicit.items() if value != getattr(base.request, name)}


def _other(made: KernelPlan) -> Rescale:
    return Rescale.late if made.rescale is Rescale.early else Rescale.early


def _choice(made: KernelPlan) -> TileChoice:
    return TileChoice(**{field.name: getattr(made, field.name) for field in fields(TileChoice)})


def distinct_tiles(ranked: Iterable[Plan], count: int) -> list[Plan]:
    """The first plan of each of the first ``count`` tiles."""
    first: dict[tuple[int, ...], Plan] = {}
    for made in ranked:
        # Swizzles divide dq's columns, so that a backward swizzled otherwise is another tile.
        swizzles = (made.swizzle_qk, made.swizzle_v) if isinstance(made, BackwardPlan) else ()
        first.setdefault((made.block_m, made.block_n, *swizzles), made)
    return list(first.values())[:count]
