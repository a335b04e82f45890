"""Plans: who chooses what, and that every head dim has one."""

from __future__ import annotations

import itertools
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.generator import (
    ConfigError,
    Epilogue,
    KernelSpec,
    PlanError,
    PlanRequest,
    Rescale,
    Scheduler,
    load_config,
    plan,
    plan_entry,
)
from flashgen.generator.cost import SPARE_IF_COMPILED, cost, exp2_cycles, matrix_cycles
from flashgen.generator.feasibility import TileChoice
from flashgen.generator.footprint import SMEM_LIMIT, accumulator_limit
from flashgen.generator.shipped import _requests, shipped_path, shipped_request

D128 = KernelSpec.forward(head_dim=128)
D120 = KernelSpec.forward(head_dim=120)  # nobody ships it


def test_shipped_tile_is_taken_when_nothing_is_asked() -> None:
    made = plan(D128)
    shipped = shipped_request(D128)
    assert shipped is not None
    assert made.origin == "shipped"
    assert (made.block_m, made.block_n) == (shipped.block_m, shipped.block_n)
    assert made.threads == 128 * (made.consumer_warpgroups + 1)


def test_model_chooses_for_a_spec_that_nobody_ships() -> None:
    made = plan(D120)
    assert made.origin == "model"
    assert made.consumer_warpgroups == 2
    assert plan(D120) == made


def test_all_pairs_of_head_dims_have_a_plan_that_fits() -> None:
    for qk, v in itertools.product(range(8, 257, 8), repeat=2):
        made = plan(KernelSpec.forward(head_dim=qk, head_dim_v=v))
        assert made.smem_bytes <= SMEM_LIMIT
        assert made.accumulator_registers <= accumulator_limit(made.consumer_warpgroups, made.consumer_registers)
        assert made.stages >= 2
        assert made.block_m == 64 * made.consumer_warpgroups
        assert plan(made.spec, made.request) == made


def test_padding_follows_the_real_head_dim() -> None:
    spec = KernelSpec.forward(head_dim=72, head_dim_v=40)
    narrow = plan(spec, PlanRequest(swizzle_qk=32, swizzle_v=32))
    assert (narrow.padded_qk, narrow.padded_v) == (80, 48)
    wide = plan(spec, PlanRequest(swizzle_qk=128, swizzle_v=64))
    assert (wide.padded_qk, wide.padded_v) == (128, 64)
    assert (wide.chunk_qk, wide.chunk_v) == (64, 32)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (PlanRequest(block_m=128, block_n=64), {"block_m": 128, "block_n": 64, "consumer_warpgroups": 2}),
        (PlanRequest(block_n=48), {"block_n": 48}),
        (PlanRequest(consumer_warpgroups=1), {"block_m": 64, "pingpong": False}),
        (PlanRequest(stages=3), {"stages": 3, "overlap": True}),
        (PlanRequest(stages=1), {"stages": 1, "overlap": False}),
        (PlanRequest(scheduler=Scheduler.single), {"scheduler": Scheduler.single, "block_n": plan(D128).block_n}),
        (PlanRequest(pingpong=False, overlap=False), {"pingpong": False, "overlap": False}),
        (PlanRequest(rescale=Rescale.late), {"rescale": Rescale.late}),
        (PlanRequest(epilogue=Epilogue.registers), {"epilogue": Epilogue.registers}),
        (PlanRequest(consumer_registers=232), {"consumer_registers": 232}),
    ],
)
def test_explicit_values_are_honoured(request_: PlanRequest, expected: dict[str, object]) -> None:
    made = plan(D128, request_)
    assert made.origin == "config"
    assert {name: getattr(made, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (PlanRequest(block_m=128, block_n=256), "295936 bytes of shared memory; 232448 are available"),
        (PlanRequest(block_m=100), "tile m: got 100"),
        (PlanRequest(block_n=100), "tile n: got 100"),
        (PlanRequest(consumer_warpgroups=3, block_m=128), "legal: 192"),
        (PlanRequest(consumer_warpgroups=7), "warpgroups: got 7"),
        (PlanRequest(stages=1, overlap=True), "2 or more with overlap"),
        (PlanRequest(stages=0), "stages: got 0"),
        (PlanRequest(stages=40), "40 stages"),
        (PlanRequest(producer_registers=0), "registers producer: got 0"),
        (PlanRequest(consumer_warpgroups=1, pingpong=True), "pingpong: got true"),
    ],
)
def test_explicit_values_that_cannot_be_are_refused(request_: PlanRequest, part: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(D128, request_)
    assert part in str(caught.value)


def test_a_shipped_tile_that_does_not_go_with_the_request_gives_way() -> None:
    # The tile that ships has no room for out beside it.
    spec = KernelSpec.forward(head_dim=256)
    assert plan(spec).epilogue is Epilogue.registers
    made = plan(spec, PlanRequest(epilogue=Epilogue.tile))
    assert made.epilogue is Epilogue.tile
    assert made.block_n < plan(spec).block_n


@pytest.mark.parametrize(
    "bad", [{"stages": True}, {"block_m": "128"}, {"overlap": 1}, {"block_n": 64.0}, {"scheduler": "dynmic"}]
)
def test_requests_of_a_wrong_type(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="legal"):
        PlanRequest(**bad)  # type: ignore[arg-type]


def test_defaults_follow_mask_and_head_dim() -> None:
    assert plan(KernelSpec.forward(head_dim=24)).scheduler is Scheduler.static
    assert plan(KernelSpec.forward(head_dim=24, mask="causal")).scheduler is Scheduler.dynamic
    made = plan(KernelSpec.forward(head_dim=24))
    assert (made.rescale, made.lazy_rescale, made.early_start) == (Rescale.early, True, False)


def test_a_causal_tile_for_out_leaves_registers_to_both_ways_out() -> None:
    """As the compiler was seen to take: by consumer warpgroups, the widest v that it does not spill for."""
    for groups, block_n, widest in ((1, 32, 240), (2, 48, 240), (3, 32, 168)):
        tile = PlanRequest(block_m=64 * groups, block_n=block_n)
        for mask in ("full", "causal"):
            for v in (widest, widest + 8):
                spec = KernelSpec.forward(head_dim=8, head_dim_v=v, mask=mask)
                fits = mask == "full" or v == widest
                assert plan(spec, tile).epilogue is (Epilogue.tile if fits else Epilogue.registers)
                assert plan(spec, replace(tile, epilogue=Epilogue.tile)).epilogue is Epilogue.tile, "where asked for"


def test_plan_entry_places_the_error_at_the_key() -> None:
    text = "kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\n\ntile: {m: 128, n: 256}\n"
    with pytest.raises(PlanError, match=r"^\(text\):6: tile 128x256"):
        plan_entry(load_config(text)[0])


def test_origin_is_no_part_of_a_plan() -> None:
    made = plan(D128)
    assert replace(made, origin="config") == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert len({made, replace(made, origin="model"), replace(made, stages=3)}) == 2


def test_shipped_lookup_is_quick_and_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    plan(D128)
    opened: list[str] = []
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *args: opened.append(self.name) or real(self, *args))
    times = []
    for _ in range(10):
        _requests.cache_clear()
        start = time.process_time()  # other processes may want the cores too
        plan(D128)
        times.append(time.process_time() - start)
    assert set(opened) == {shipped_path(D128).name}
    assert min(times) < 0.010


def test_model_cycles_are_those_of_the_hardware() -> None:
    # Head dim 128: 0.125 cycle a score for both products, 0.0625 for exp2.
    assert matrix_cycles(D128, 128, 128) / (128 * 128) == 0.125
    assert exp2_cycles(128, 128) / (128 * 128) == 0.0625
    # A narrow block re-reads q: 16 keys make the first product bound by shared memory.
    assert matrix_cycles(D128, 128, 16) / (128 * 16) > 0.125


def test_model_prefers_a_tile_that_does_more_at_a_time() -> None:
    wide = TileChoice(128, 128, 2, 1, 2, 24, 240, True, True, Epilogue.tile, 128, 128)
    assert cost(D128, wide) < cost(D128, replace(wide, block_n=32))
    assert cost(D128, wide) < cost(D128, replace(wide, overlap=False, pingpong=False))
    # Who compiles a tile before believing in it takes one whose registers are nearly all used.
    tight = replace(wide, block_n=160)
    assert cost(D128, tight, SPARE_IF_COMPILED) < cost(D128, wide) < cost(D128, tight)
