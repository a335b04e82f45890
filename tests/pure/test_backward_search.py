"""What a tuner tries of a backward: all that is feasible and may matter, each explicit and once, likely ones first."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from functools import cache

import pytest

from flashgen.generator import BackwardPlan, BackwardRequest, KernelSpec, PlanError, plan_backward
from flashgen.generator.backward_feasibility import problem
from flashgen.generator.backward_plan import PERSISTENT_SPLIT
from flashgen.generator.backward_planner import register_splits
from flashgen.generator.backward_search import siblings, tiles
from flashgen.generator.footprint import REGISTER_SPLIT, SWIZZLES, natural_swizzle
from flashgen.generator.request import Scheduler
from flashgen.generator.search import TILE, distinct_tiles, label, shortest
from flashgen.generator.shipped import shipped_request

SPECS = [
    KernelSpec.backward(head_dim=16),
    KernelSpec.backward(head_dim=64, mask="causal"),
    KernelSpec.backward(head_dim=72, dtype="fp16"),
    KernelSpec.backward(head_dim=128, mask="causal", deterministic=True),
    KernelSpec.backward(head_dim=192, head_dim_v=128),
    KernelSpec.backward(head_dim=128),
    KernelSpec.backward(head_dim=256),
    KernelSpec.backward(head_dim=72, head_dim_v=80, mask="causal"),  # two stages of both, and 128 rows may spill
]
REGISTERS = ("producer_registers", "consumer_registers")
NAMES = [field.name for field in fields(BackwardRequest)]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


def planned(spec: KernelSpec) -> list[BackwardPlan]:
    return [plan_backward(spec, request) for request in tiles(spec)]


def unasked(made: BackwardPlan, request: BackwardRequest, name: str) -> bool:
    """Whether the request gives the plan without that choice as well."""
    try:
        return plan_backward(made.spec, replace(request, **{name: None})) == made
    except PlanError:
        return False


def with_registers(made: BackwardPlan) -> list[BackwardPlan]:
    """The plan with each register split that its scheduler may have."""
    return [replace(made, **dict(zip(REGISTERS, split, strict=True))) for split in register_splits(made.scheduler)]


@cache
def everything(spec: KernelSpec) -> list[BackwardPlan]:
    return [made for base in planned(spec) for made in (base, *(plan_backward(spec, r) for r in siblings(base)))]


def feasible(spec: KernelSpec) -> set[BackwardPlan]:
    """All plans with up to three stages, whatever their swizzles and wherever their keys are."""
    base = plan_backward(spec)
    tile = [(False, 64, 128), (False, 80, 128), (False, 128, 128), (True, 64, 64)]
    found, flag = set(), (False, True)
    for (roles, m, n), q, do, passes, qk, v, keys, in_order, stores, loops, scheduler in itertools.product(
        tile, (1, 2, 3), (1, 2, 3), (1, 2, 4), SWIZZLES, SWIZZLES, flag, flag, flag, flag, Scheduler
    ):
        made = replace(
            base, split_roles=roles, block_m=m, block_n=n, stages_q=q, stages_do=do, stages_ds=1 if roles else 2,
            dq_passes=passes, swizzle_qk=qk, swizzle_v=v, keys_in_registers=keys, keys_in_order=in_order,
            stores_first=stores, mask_loops=loops, scheduler=scheduler,
        )  # fmt: skip
        if roles or passes == 1:
            found.update([each for each in with_registers(made) if problem(each) is None][:1])
    return found


@every_spec
def test_plans_are_explicit_feasible_and_distinct(spec: KernelSpec) -> None:
    made = everything(spec)
    assert len(set(made)) == len(made) >= 5
    assert [problem(each) for each in made] == [None] * len(made)
    assert all(len(request.explicit) == len(NAMES) for request in tiles(spec))
    assert [each.request for each in planned(spec)] == tiles(spec)
    registers = {(each.producer_registers, each.consumer_registers, each.persistent) for each in made}
    usual, persistent = (*REGISTER_SPLIT[2], False), (*PERSISTENT_SPLIT, True)
    assert {usual} <= registers <= {usual, persistent, (*REGISTER_SPLIT[2], True)}
    assert (persistent in registers) == any(not each.split_roles for each in made)


@every_spec
def test_nothing_feasible_is_left_out_but_swizzles_that_cannot_help(spec: KernelSpec) -> None:
    natural_qk, natural_v = (natural_swizzle(d, spec.dtype.bytes) for d in (spec.head_dim_qk, spec.head_dim_v))
    every, found = feasible(spec), set(everything(spec))
    assert found <= every
    for made in every - found:
        wider = [replace(made, swizzle_qk=width) for width in SWIZZLES if width > made.swizzle_qk]
        same_division = any(other.dq_columns == made.dq_columns for other in wider)
        assert made.swizzle_v < natural_v or (made.swizzle_qk < natural_qk and same_division), label(made)


@every_spec
def test_what_the_planner_prefers_comes_first_in_each_tile(spec: KernelSpec) -> None:
    for made in planned(spec):
        tile = BackwardRequest(
            block_m=made.block_m, split_roles=made.split_roles, swizzle_qk=made.swizzle_qk, swizzle_v=made.swizzle_v
        )
        assert plan_backward(spec, tile) == made
    assert plan_backward(spec) in everything(spec), "today's plan is one of them"
    assert all(plan_backward(spec, made.request) == made for made in everything(spec))
    first = planned(spec)[0]
    natural = [natural_swizzle(d, spec.dtype.bytes) for d in (spec.head_dim_qk, spec.head_dim_v)]
    assert [first.swizzle_qk, first.swizzle_v] == natural


@every_spec
def test_the_kernels_limits_are_kept(spec: KernelSpec) -> None:
    """By keys dq goes at once and dS has two stages; by roles dS has one, which is where it is written.

    Only by keys each warpgroup has keys of its own to keep.
    """
    for made in everything(spec):
        assert made.stages_ds == (1 if made.split_roles else 2)
        assert made.split_roles or made.dq_passes == 1
        assert not (made.split_roles and (made.keys_in_registers or made.mask_loops))
        assert made.mask_loops or made.block_m != 80


@pytest.mark.parametrize(("spec", "fits"), [(SPECS[1], True), (SPECS[2], True), (SPECS[3], False)])
def test_keys_are_tried_in_registers_where_they_fit(spec: KernelSpec, fits: bool) -> None:
    found = {made.keys_in_registers for made in everything(spec) if (made.block_m, made.split_roles) == (64, False)}
    assert found == ({False, True} if fits else {False})


@every_spec
def test_the_order_of_the_keys_is_tried_both_ways_where_nobody_asks_for_it(spec: KernelSpec) -> None:
    found = {made.keys_in_order for made in everything(spec)}
    assert found == {True, spec.deterministic}
    assert all(made.keys_in_order == spec.deterministic for made in planned(spec)), "tiles are as the planner has them"


@every_spec
def test_storing_first_is_tried_both_ways_in_any_number_of_passes(spec: KernelSpec) -> None:
    found = {made: made.stores_first for made in everything(spec)}
    assert spec is not SPECS[6] or {made.dq_passes for made in found} == {1, 2, 4}
    assert {replace(made, stores_first=not stores) for made, stores in found.items()} == set(found)


@every_spec
def test_a_loop_for_masked_blocks_is_tried_both_ways_where_64_or_128_rows_leave_the_registers(spec: KernelSpec) -> None:
    by_keys = [made for made in everything(spec) if not made.split_roles]
    leave = {with_registers(made)[-1] for made in by_keys if made.block_m != 80 and made.accumulator_registers <= 196}
    assert {replace(made, mask_loops=not made.mask_loops) for made in leave} == leave
    assert all(made.mask_loops for made in by_keys if with_registers(made)[-1] not in leave)


def test_swizzles_narrower_than_natural_are_for_an_even_division_of_dq() -> None:
    found = {(made.split_roles, made.block_m, made.swizzle_qk): made.dq_columns for made in planned(SPECS[1])}
    assert found == {
        (False, 128, 128): (64, 64),  # whole rows each
        (False, 64, 128): (64, 0),
        (False, 64, 64): (32, 32),
        (True, 64, 64): (32, 32),
    }


@every_spec
def test_siblings_keep_the_tile_and_the_nearest_come_first(spec: KernelSpec) -> None:
    base = plan_backward(spec)
    odd = replace(base, producer_registers=24, consumer_registers=232)
    for start in (base, odd):
        others = [plan_backward(spec, request) for request in siblings(start)]
        changed = [{name for name in NAMES if getattr(start, name) != getattr(made, name)} for made in others]
        assert set().union(*changed) <= {
            *REGISTERS, "stages_q", "stages_do", "dq_passes", "scheduler",
            "keys_in_registers", "keys_in_order", "stores_first", "mask_loops",
        }  # fmt: skip
        assert all("scheduler" in names for names in changed if names & set(REGISTERS))
        assert [len(names) for names in changed] == sorted(len(names) for names in changed)
        assert all(changed)


@every_spec
def test_labels_tell_plans_apart_and_the_shortest_request_gives_the_plan(spec: KernelSpec) -> None:
    made = everything(spec)
    assert len({label(each) for each in made}) == len(made)
    for each in made[:: 1 + len(made) // 600]:  # spread over all of them
        request = shortest(each)
        assert plan_backward(spec, request) == each
        assert set(TILE) <= set(request.explicit)
        assert not [name for name in request.explicit if name not in TILE and unasked(each, request, name)]
    today, shipped = plan_backward(spec), shipped_request(spec)
    assert set(shortest(today).explicit) <= {*TILE, *(shipped.explicit if shipped else ())}
    assert (shipped is None) == (today.origin == "model")


def test_a_tile_swizzled_otherwise_is_another() -> None:
    made = planned(SPECS[1])
    assert distinct_tiles(everything(SPECS[1]), 10) == made
    assert distinct_tiles(everything(SPECS[1]), 2) == made[:2]
