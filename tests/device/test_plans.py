"""Plans that no config ships: every switch of the generator beside every other, right whatever its speed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from flashgen.cases import Case
from flashgen.errors import PlanError
from flashgen.generator import KernelPlan, PlanRequest
from flashgen.generator import plan as make_plan
from flashgen.verify import verify_kernel
from tests.device.covering import pairs_of
from tests.device.helpers import DEVICE, DTYPES, MASKS, both, kernel_of, plan_for

SWITCHES: dict[str, tuple[Any, ...]] = {
    "dims": (40, 72, 128, (192, 128), (64, 136)),
    "dtype": tuple(DTYPES),
    "mask": MASKS,
    "scheduler": ("single", "static", "dynamic"),
    "rescale": ("early", "late"),
    "lazy_rescale": (True, False),
    "early_start": (True, False),
    "epilogue": ("tile", "registers"),
    "overlap": (True, False),
    "pingpong": (True, False),
    "stages_q": (1, 2),
    "consumer_warpgroups": (1, 2, 3),
    "swizzle_qk": (32, 64, 128),
    "swizzle_v": (32, 64, 128),
    "block_n": (16, 48, 80),
}
COUNT = 24
SPEC = ("dims", "dtype", "mask")
REQUESTED = [name for name in SWITCHES if name not in SPEC]


@cache
def plans() -> tuple[KernelPlan, ...]:
    """Feasible combinations of the switches, each chosen for the pairs that no earlier one holds."""
    luck = random.Random(0)
    drawn = [{name: luck.choice(values) for name, values in SWITCHES.items()} for _ in range(600)]
    feasible = {plan: pairs_of(row, list(SWITCHES)) for row in drawn if (plan := plan_of(row)) is not None}
    held: set[Any] = set()
    chosen = []
    for _ in range(COUNT):
        plan = max(feasible, key=lambda plan: len(feasible[plan] - held))
        held |= feasible.pop(plan)
        chosen.append(plan)
    return tuple(chosen)


def plan_of(row: dict[str, Any]) -> KernelPlan | None:
    spec = plan_for(row["dims"], row["dtype"], row["mask"]).spec
    try:
        return make_plan(spec, PlanRequest(**{name: row[name] for name in REQUESTED}))
    except PlanError:
        return None


@cache
def ranges() -> tuple[KernelPlan, ...]:
    """Each is meant for a range of keys and must be right for any number."""
    kinds = ((64, "causal"), (128, "full"), (128, "causal"))
    return tuple(plan_for(dims, "bf16", mask, keys) for dims, mask in kinds for keys in (1, 100_000))


def kernels() -> list[KernelPlan]:
    return [*plans(), *ranges()]


def problems(plan: KernelPlan) -> list[Case]:
    m, n = plan.block_m, plan.block_n
    return [
        Case(1, 1, 1, 1, 1),
        Case(2, m + 1, 3 * n + 5, 4, 2, "outliers", "surrounded"),
        Case(2, 2 * m + 3, n // 2, 2, 1, layout="surrounded"),  # causal: tiles and rows that see no key
        Case(1, 129, 4 * n + 7, 6, 2, "logits_-10000", "transposed"),
        Case(3, 4 * m + 1, 2 * n + 1, 32, 8, "wide"),  # more tiles than multiprocessors
        Case(1, 1025, 1023, 3, 1, "logits_-100", "surrounded"),
    ]


def shown(plan: KernelPlan) -> str:
    chosen = (
        f"{plan.block_m}x{plan.block_n}x{plan.stages} q{plan.stages_q}", plan.scheduler, plan.rescale, plan.epilogue,
        f"swizzle {plan.swizzle_qk}/{plan.swizzle_v}", *(name for name in
        ("lazy_rescale", "early_start", "overlap", "pingpong") if getattr(plan, name)),
    )  # fmt: skip
    return f"{plan.name} {' '.join(map(str, chosen))}"


def test_the_selection_holds_every_value_of_every_switch() -> None:
    for name, values in SWITCHES.items():
        if name == "dims":
            got, wanted = {(p.spec.head_dim_qk, p.spec.head_dim_v) for p in plans()}, {both(d) for d in values}
        else:
            got, wanted = {getattr(p.spec if name in SPEC else p, name) for p in plans()}, set(values)
        assert got == wanted, f"{name}: only {got} of {wanted} are feasible"
    assert len(set(plans())) == COUNT


@pytest.mark.parametrize("index", range(COUNT))
def test_every_plan_computes_the_same_thing(index: int) -> None:
    verified(plans()[index], problems(plans()[index]))


@pytest.mark.parametrize("index", range(6))
def test_a_kernel_for_a_range_of_keys_is_right_outside_of_it(index: int) -> None:
    plan = ranges()[index]
    more = [Case(1, 4224, 4224, 2, 1), Case(1, 300, 20_011, 2, 2, "wide"), Case(9, 1, 63, 8, 1)]
    verified(plan, problems(plan) + more)


def verified(plan: KernelPlan, cases: list[Case]) -> None:
    done = verify_kernel(kernel_of(plan), DEVICE, cases)
    wrong = "\n".join(f"{failure.case}: {failure.reason}" for failure in done.failures)
    assert done.ok, f"{shown(plan)}\n{wrong}"
