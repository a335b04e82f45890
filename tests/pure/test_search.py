"""What a tuner tries: plans that are feasible, explicit and distinct, likely ones first, neighbours one knob apart."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest

from flashgen.generator import KernelPlan, KernelSpec, PlanRequest, plan
from flashgen.generator.footprint import SMEM_LIMIT
from flashgen.generator.request import Rescale, Scheduler
from flashgen.generator.search import combinations, distinct_tiles, label, neighbours, planned, shortest, tiles

SPECS = [
    KernelSpec.forward(head_dim=64),
    KernelSpec.forward(head_dim=72, mask="causal"),
    KernelSpec.forward(head_dim=128, dtype="fp16", mask="causal"),
    KernelSpec.forward(head_dim=192, head_dim_v=128),
    KernelSpec.forward(head_dim=256),
]
NAMES = [field.name for field in fields(PlanRequest)]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


def changed(a: KernelPlan, b: KernelPlan) -> set[str]:
    return {name for name in NAMES if getattr(a, name) != getattr(b, name)}


@every_spec
def test_tiles_are_explicit_feasible_and_distinct(spec: KernelSpec) -> None:
    requests = tiles(spec)
    plans = [plan(spec, request) for request in requests]
    assert len(set(plans)) == len(plans) >= 20
    assert all(len(request.explicit) == len(NAMES) for request in requests)
    assert [made.request for made in plans] == requests
    assert all(made.smem_bytes <= SMEM_LIMIT for made in plans)
    assert tiles(spec) == requests, "the order does not change from call to call"


@every_spec
def test_tiles_hold_every_tile_that_fits_both_ways_to_rescale(spec: KernelSpec) -> None:
    found = {(request.block_m, request.block_n, request.rescale) for request in tiles(spec)}
    fitting = {
        (m, n)
        for m in (64, 128, 192)
        for n in range(16, 257, 16)
        if planned(spec, PlanRequest(block_m=m, block_n=n)) is not None
    }
    assert found == {(m, n, way) for m, n in fitting for way in Rescale}


@every_spec
def test_the_cost_models_favourites_come_first(spec: KernelSpec) -> None:
    found = [plan(spec, request) for request in tiles(spec)]
    assert changed(*found[:2]) == {"rescale"}
    order = list(dict.fromkeys((made.block_m, made.block_n) for made in found))
    careful = plan(spec, PlanRequest(stages=2))  # names no shipped tile, so that the model chooses
    # The planner, who compiles nothing, keeps clear of tiles that may spill; a search starts with those.
    assert (careful.block_m, careful.block_n) in order[:3]
    assert order[0][1] >= careful.block_n


@every_spec
def test_neighbours_change_one_knob_and_what_saves_room(spec: KernelSpec) -> None:
    base = plan(spec, tiles(spec)[0])
    made = [plan(spec, request) for request in neighbours(base)]
    assert len(set(made)) == len(made) >= 5
    assert base not in made
    for other in made:
        difference = changed(base, other)
        assert not difference & {"block_m", "block_n", "consumer_warpgroups", "overlap"}
        saved = difference & {"stages_q", "epilogue"}
        assert len(difference - saved) == 1 or (difference == saved and saved), label(other)
    knobs = set().union(*(changed(base, other) for other in made))
    assert knobs >= {"rescale", "early_start", "lazy_rescale", "scheduler", "pingpong"}
    assert {other.scheduler for other in made} == set(Scheduler)


def test_swizzles_are_tried_where_rows_are_not_whole() -> None:
    even, odd = (plan(spec, tiles(spec)[0]) for spec in SPECS[:2])
    knobs = [{name for r in neighbours(base) for name in changed(base, plan(base.spec, r))} for base in (even, odd)]
    assert not knobs[0] & {"swizzle_qk", "swizzle_v"}
    assert knobs[1] >= {"swizzle_qk", "swizzle_v"}


def test_tiles_come_with_whole_rows_where_they_are_swizzled_narrower() -> None:
    found = {(r.block_m, r.block_n, r.swizzle_qk, r.swizzle_v) for r in tiles(KernelSpec.forward(head_dim=224))}
    assert {(128, 80, 64, 64), (128, 80, 128, 128), (128, 64, 128, 128)} <= found


def test_one_warpgroup_takes_no_turns() -> None:
    base = plan(SPECS[0], PlanRequest(block_m=64, block_n=64))
    assert all(not request.pingpong for request in neighbours(base))


def test_combinations_hold_what_helped_together() -> None:
    base = plan(SPECS[2], PlanRequest(block_m=128, block_n=128, rescale=Rescale.late))
    early = replace(base, rescale=Rescale.early)
    start = replace(base, early_start=not base.early_start)
    single = replace(base, scheduler=Scheduler.single)
    made = [plan(base.spec, request) for request in combinations(base, [early, start, single])]
    assert [changed(base, other) for other in made] == [
        {"rescale", "early_start", "scheduler"},
        {"rescale", "early_start"},
        {"rescale", "scheduler"},
        {"early_start", "scheduler"},
    ]
    assert combinations(base, [early]) == []
    assert combinations(base, [single, replace(base, scheduler=Scheduler.static)]) == [], "one value of a knob each"


@every_spec
def test_shortest_gives_the_plan_and_nothing_can_be_left_out(spec: KernelSpec) -> None:
    for base in (plan(spec, request) for request in tiles(spec)[:4]):
        for made in (plan(spec, request) for request in neighbours(base)):
            request = shortest(made)
            assert plan(spec, request) == made
            for name in set(request.explicit) - {"block_m", "block_n"}:
                assert planned(spec, replace(request, **{name: None})) != made, (label(made), name)


@every_spec
def test_labels_tell_plans_apart(spec: KernelSpec) -> None:
    plans = {plan(spec, request) for request in tiles(spec)}
    plans |= {plan(spec, request) for made in list(plans)[:4] for request in neighbours(made)}
    assert len({label(made) for made in plans}) == len(plans)


def test_distinct_tiles_keep_the_first_of_each() -> None:
    spec = SPECS[0]
    plans = [plan(spec, request) for request in tiles(spec)]
    assert distinct_tiles(plans, 3) == plans[0:6:2]
    assert [asdict(made) for made in distinct_tiles(plans[:1], 3)] == [asdict(plans[0])]
