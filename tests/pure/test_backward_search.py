"""What a tuner tries of a backward: all that is feasible and may matter, each explicit and once, likely ones first."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import pytest

from flashgen.generator import BackwardPlan, BackwardRequest, KernelSpec, plan_backward
from flashgen.generator.backward_feasibility import problem
from flashgen.generator.backward_search import siblings, tiles
from flashgen.generator.footprint import REGISTER_SPLIT, SWIZZLES, natural_swizzle
from flashgen.generator.search import distinct_tiles, label, shortest

SPECS = [
    KernelSpec.backward(head_dim=16),
    KernelSpec.backward(head_dim=64, mask="causal"),
    KernelSpec.backward(head_dim=72, dtype="fp16"),
    KernelSpec.backward(head_dim=128, mask="causal", deterministic=True),
    KernelSpec.backward(head_dim=192, head_dim_v=128),
    KernelSpec.backward(head_dim=256),
]
NAMES = [field.name for field in fields(BackwardRequest)]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


def planned(spec: KernelSpec) -> list[BackwardPlan]:
    return [plan_backward(spec, request) for request in tiles(spec)]


def everything(spec: KernelSpec) -> list[BackwardPlan]:
    return [made for base in planned(spec) for made in (base, *(plan_backward(spec, r) for r in siblings(base)))]


def feasible(spec: KernelSpec) -> set[BackwardPlan]:
    """All plans with up to three stages, whatever their swizzles."""
    base = plan_backward(spec)
    tile = [(False, 64, 128), (False, 128, 128), (True, 64, 64)]
    found = set()
    for (roles, m, n), q, do, passes, qk, v in itertools.product(
        tile, (1, 2, 3), (1, 2, 3), (1, 2, 4), SWIZZLES, SWIZZLES
    ):
        made = replace(
            base, split_roles=roles, block_m=m, block_n=n, stages_q=q, stages_do=do, stages_ds=1 if roles else 2,
            dq_passes=passes, swizzle_qk=qk, swizzle_v=v,
        )  # fmt: skip
        if problem(made) is None and (roles or passes == 1):
            found.add(made)
    return found


@every_spec
def test_plans_are_explicit_feasible_and_distinct(spec: KernelSpec) -> None:
    made = everything(spec)
    assert len(set(made)) == len(made) >= 5
    assert [problem(each) for each in made] == [None] * len(made)
    assert all(len(request.explicit) == len(NAMES) for request in tiles(spec))
    assert [each.request for each in planned(spec)] == tiles(spec)
    registers = {(each.producer_registers, each.consumer_registers) for each in made}
    assert registers == {REGISTER_SPLIT[2]}


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
    assert plan_backward(spec) in planned(spec), "today's plan is one of them"
    first = planned(spec)[0]
    natural = [natural_swizzle(d, spec.dtype.bytes) for d in (spec.head_dim_qk, spec.head_dim_v)]
    assert [first.swizzle_qk, first.swizzle_v] == natural


@every_spec
def test_the_kernels_limits_on_ds_and_passes_are_kept(spec: KernelSpec) -> None:
    """By keys dq goes at once and dS has two stages; by roles dS has one, which is where it is written."""
    for made in everything(spec):
        assert made.stages_ds == (1 if made.split_roles else 2)
        assert made.split_roles or made.dq_passes == 1


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
        assert set().union(*changed) <= {"stages_q", "stages_do", "dq_passes"}
        assert [len(names) for names in changed] == sorted(len(names) for names in changed)
        assert all(changed)


@every_spec
def test_labels_tell_plans_apart_and_the_shortest_request_gives_the_plan(spec: KernelSpec) -> None:
    made = everything(spec)
    assert len({label(each) for each in made}) == len(made)
    for each in made:
        request = shortest(each)
        assert plan_backward(spec, request) == each
        assert {"block_m", "block_n", "split_roles"} <= set(request.explicit)
    assert set(shortest(plan_backward(spec)).explicit) == {"block_m", "block_n", "split_roles"}


def test_a_tile_swizzled_otherwise_is_another() -> None:
    made = planned(SPECS[1])
    assert distinct_tiles(everything(SPECS[1]), 10) == made
    assert distinct_tiles(everything(SPECS[1]), 2) == made[:2]
