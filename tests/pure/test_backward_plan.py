"""Plans of the backward: what is chosen, what fits, to the byte, and what is refused."""

from __future__ import annotations

import itertools
import pickle
import re
from dataclasses import replace

import pytest

from flashgen.generator import (
    BackwardPlan,
    BackwardRequest,
    KernelSpec,
    PlanError,
    load_config,
    plan,
    plan_backward,
    plan_entry,
    plan_forward,
)
from flashgen.generator.backward_feasibility import accumulator_limit
from flashgen.generator.backward_plan import OVERHEAD
from flashgen.generator.errors import ConfigError
from flashgen.generator.footprint import SMEM_LIMIT
from flashgen.generator.paths import INCLUDE
from flashgen.generator.shipped import shipped_request
from tests.pure.backward_plans import backward

SMEM = INCLUDE / "flashgen" / "fa3" / "backward" / "smem.cuh"
PARAMS = INCLUDE / "flashgen" / "attention" / "backward_params.h"


def test_shipped_choices_are_taken_when_nothing_is_asked() -> None:
    spec = KernelSpec.backward(head_dim=128)
    made = plan(spec)
    assert isinstance(made, BackwardPlan)
    shipped = shipped_request(spec)
    assert shipped is not None
    assert made.origin == "shipped"
    assert {name: getattr(made, name) for name in shipped.explicit} == shipped.explicit
    assert backward(120).origin == "model"
    assert backward(128, stages_q=1).origin == "config"


def test_all_pairs_of_head_dims_have_a_plan_that_fits() -> None:
    for qk, v in itertools.product(range(8, 257, 8), repeat=2):
        made = backward(qk, v)
        assert made.smem_bytes <= SMEM_LIMIT
        assert made.accumulator_registers <= accumulator_limit(made)
        assert plan_backward(made.spec, made.request) == made


@pytest.mark.parametrize(
    ("dims", "tile", "roles"),
    [
        ((64, 64), (128, 128), False), ((80, 80), (128, 128), False), ((128, 128), (80, 128), False),
        ((136, 136), (64, 64), True), ((256, 256), (64, 64), True), ((192, 128), (64, 64), True),
        ((88, 88), (64, 128), False), ((16, 256), (64, 128), False),
    ],
)  # fmt: skip
def test_the_tile_follows_the_head_dims(dims: tuple[int, int], tile: tuple[int, int], roles: bool) -> None:
    made = backward(*dims)
    assert (made.block_m, made.block_n) == tile
    assert made.split_roles is roles
    assert made.stages_ds == (1 if roles else 2)
    assert made.threads == 384


def test_shared_memory_to_the_byte() -> None:
    made = backward(128, block_m=64, block_n=128, stages_q=2, stages_do=2)
    rows = {row.name: (row.offset, row.bytes) for row in made.smem}
    assert rows == {
        "k": (0, 32768),
        "v": (32768, 32768),
        "q": (65536, 32768),
        "dout": (98304, 32768),
        "ds": (131072, 32768),
        "p": (163840, 16),
        "dq": (163968, 32768),
        "lse": (196736, 512),
        "dpsum": (197248, 512),
        "barriers": (197760, 120),
        "padding": (197880, 776),
    }
    assert made.smem_bytes == 198656
    wide = backward(256)
    assert {row.name: row.bytes for row in wide.smem}["p"] == 64 * 64 * 4
    assert {row.name: row.bytes for row in wide.smem}["dq"] == 64 * 256 * 4 // 2


def test_members_are_those_of_the_struct() -> None:
    members = re.findall(r"^  alignas\((\d+)\) \w+ (\w+)\[", SMEM.read_text("utf-8"), re.MULTILINE)
    for made in (backward(64), backward(72), backward(256)):
        assert [row.name for row in made.smem[: len(members)]] == [name for _, name in members]
        assert all(row.offset % int(align) == 0 for row, (align, _) in zip(made.smem, members, strict=False))


@pytest.mark.parametrize(
    ("dims", "changes", "columns"),
    [
        ((64, 64), {}, (64, 64)), ((64, 64), {"block_m": 64}, (64, 0)), ((72, 72), {"block_m": 64}, (32, 40)),
        ((72, 72), {}, (72, 72)),
        ((192, 192), {"swizzle_qk": 64}, (96, 96)), ((192, 192), {}, (128, 64)),
        ((24, 256), {}, (16, 8)), ((8, 8), {"block_m": 64}, (8, 0)),
        ((64, 256), {}, (32, 32)),
    ],
)  # fmt: skip
def test_columns_of_dq(dims: tuple[int, int], changes: dict[str, int], columns: tuple[int, int]) -> None:
    assert backward(*dims, **changes).dq_columns == columns


def test_accumulators_are_those_of_the_fullest_moment() -> None:
    assert backward(128).accumulators == (("dk", 64), ("dv", 64), ("s", 40), ("dp", 40))
    assert backward(64).accumulator_registers == 192
    assert backward(256).accumulators == (("dv", 128), ("dq", 64))
    assert backward(256, 128).accumulators == (("dk", 128), ("s", 32), ("dp", 32))


def test_keys_in_registers_are_counted_in_whole_steps_of_16_columns() -> None:
    kept, left = (backward(96, block_m=64, block_n=128, keys_in_registers=keys) for keys in (True, False))
    assert kept.key_registers == 24
    assert kept.accumulators == (("dk", 48), ("dv", 48), ("k", 24), ("s", 32), ("dp", 32))
    assert kept.accumulator_registers == left.accumulator_registers + 24 == 184
    assert kept.smem == left.smem, "they are read from there, and again for dq"
    assert backward(72, block_m=64).accumulators == (("dk", 36), ("dv", 36), ("k", 20), ("s", 32), ("dp", 32))
    wide = backward(64, 8, block_m=64, swizzle_qk=128)
    assert wide.accumulators == (("dk", 32), ("dv", 4), ("k", 16), ("s", 32), ("dp", 32)), "dq takes 32"


def test_keys_are_in_registers_where_they_fit() -> None:
    """By keys, with no more accumulators than there is room for; else what fits without them is taken."""
    kept = {d: backward(d, block_m=64).keys_in_registers for d in range(8, 129, 8)}
    assert kept == {d: 2 * d / 2 + -(-d // 16) * 4 + 64 <= 240 - OVERHEAD for d in kept}
    assert [kept[d] for d in (64, 104, 112)] == [True, True, False]
    assert not backward(64).keys_in_registers, "128 rows at once are preferred, and fill the registers"
    assert not backward(256).keys_in_registers
    assert backward(72, block_m=64, keys_in_registers=False).keys_in_registers is False
    assert backward(64, keys_in_registers=True).block_m == 64, "the rest follows from what is asked for"


def test_who_is_first_stores_where_nobody_waits_for_it() -> None:
    def stores(deterministic: bool, head_dim: int, **changes: object) -> bool:
        spec = KernelSpec.backward(head_dim=head_dim, deterministic=deterministic)
        return plan_backward(spec, BackwardRequest(**changes)).stores_first  # type: ignore[arg-type]

    tile = {"block_m": 64, "block_n": 64, "split_roles": True}
    for deterministic in (False, True):
        assert stores(deterministic, 128)
        assert stores(deterministic, 192, **tile, dq_passes=1)
        assert stores(deterministic, 192, **tile, dq_passes=2) is deterministic
        assert stores(deterministic, 256) is deterministic, "it takes two passes"
        assert stores(deterministic, 128, stores_first=False) is False
    assert backward(256, stores_first=True).dq_passes == 2, "asked for, with several passes too"


def test_entry_points_and_workspace() -> None:
    fast = backward(128)
    exact = plan_backward(KernelSpec.backward(head_dim=128, deterministic=True))
    name = "attention_bwd_fa3_sm90a_bf16_d128_full"
    assert fast.entry_points == (f"{name}_preprocess", name, f"{name}_postprocess")
    assert plan_forward(KernelSpec.forward(head_dim=128)).entry_points == (name.replace("bwd", "fwd"),)
    rows = 2 * 3 * 160  # 81 rows are two blocks of 80
    assert {row.name: row.bytes for row in fast.workspace(2, 3, 81)} == {
        "dq_accum": rows * 512, "lse_log2": rows * 4, "dpsum": rows * 4, "dq_state": 12 * 8, "padding": 160,
    }  # fmt: skip
    assert exact.workspace(2, 3, 81) == fast.workspace(2, 3, 81)
    assert all(row.offset % 256 == 0 for row in exact.workspace(2, 3, 81) if row.name != "padding")
    assert fast.workspace_bytes(2, 3, 81) == rows * 520 + 256
    assert exact.workspace_bytes(1, 1, 1 << 20) < 1.01 * 2 * exact.workspace_bytes(1, 1, 1 << 19)
    assert fast.workspace_bytes(1, 1, 0) == fast.workspace_bytes(0, 4, 9) == 0
    fields = set(re.findall(r"^  [\w ]+\* (\w+);", PARAMS.read_text("utf-8"), re.MULTILINE))
    assert {row.name for row in exact.workspace(1, 1, 1)} - {"padding"} <= fields


def test_an_error_is_placed_at_its_key() -> None:
    text = "kernel: attention_bwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\n\ntile: {m: 96, n: 128}\n"
    with pytest.raises(PlanError, match=r"^\(text\):6: tile m: got 96"):
        plan_entry(load_config(text)[0])


def test_each_planner_takes_its_own_kernel() -> None:
    with pytest.raises(ConfigError, match="expected one of attention_bwd"):
        plan_backward(KernelSpec.forward(head_dim=64))
    with pytest.raises(ConfigError, match="expected one of attention_fwd"):
        plan_forward(KernelSpec.backward(head_dim=64))


def test_origin_is_no_part_of_a_plan() -> None:
    made = backward(128)
    assert pickle.loads(pickle.dumps(made)) == made == replace(made, origin="model")
    assert len({made, replace(made, stages_q=1)}) == 2
