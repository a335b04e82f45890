"""Backward tiles of 80 query rows, with dq transposed: where they may be, what they take, and what they compute."""

from __future__ import annotations

import pytest
import torch

import flashgen
from flashgen.cpu_backward import attend_backward
from flashgen.generator import BackwardPlan, KernelSpec, PlanError, plan_backward
from flashgen.generator.backward_feasibility import accumulator_limit
from flashgen.generator.backward_search import siblings, tiles
from flashgen.testing import make_inputs
from flashgen.testing_backward import judge_gradients
from tests.pure.backward_plans import backward


@pytest.mark.parametrize(
    ("dims", "mask", "changes", "key", "message"),
    [
        (
            (64, 64), "full", {}, "tile",
            "tile m: got 80 for head dim qk 64; legal: 80 with 128, else 64 or 128 query rows",
        ),
        (
            (120, 128), "full", {}, "tile",
            "tile m: got 80 for head dim qk 120; legal: 80 with 128, else 64 or 128 query rows",
        ),
        (
            (128, 128), "causal", {"mask_loops": False}, "mask_loops",
            "mask_loops: got false with 80 query rows; legal: true",
        ),
        ((128, 128), "full", {"swizzle_qk": 64}, "swizzle", "swizzle qk: got 64 with 80 query rows; legal: 128"),
        (
            (128, 128), "full", {"split_roles": True}, "tile",
            "tile m: got 80 with split_roles; legal: 64 with split_roles, else 64, 80 or 128",
        ),
    ],
)  # fmt: skip
def test_refusals(dims: tuple[int, int], mask: str, changes: dict[str, object], key: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        backward(*dims, mask, block_m=80, **changes)
    assert (str(caught.value), caught.value.key) == (message, key)


def test_registers_end_at_208_of_240() -> None:
    made = backward(128, block_m=80)
    assert (made.consumer_registers, accumulator_limit(made), made.accumulator_registers) == (240, 208, 208)
    assert made.accumulators == (("dk", 64), ("dv", 64), ("s", 40), ("dp", 40))
    with pytest.raises(
        PlanError, match="tile 80x128 and head dim 128x136 needs 212 accumulator registers a thread; 208"
    ):
        backward(128, 136, block_m=80)
    with pytest.raises(PlanError, match="with keys_in_registers and head dim 128 needs 240 accumulator registers"):
        backward(128, block_m=80, keys_in_registers=True)


def test_shared_memory_to_the_byte() -> None:
    made = backward(128, block_m=80, block_n=128, stages_q=2, stages_do=2)
    assert {row.name: (row.offset, row.bytes) for row in made.smem} == {
        "k": (0, 32768),
        "v": (32768, 32768),
        "q": (65536, 40960),
        "dout": (106496, 40960),
        "ds": (147456, 40960),
        "p": (188416, 16),
        "dq": (188544, 40960),
        "lse": (229504, 640),
        "dpsum": (230144, 640),
        "barriers": (230784, 120),
        "padding": (230904, 520),
    }
    assert made.smem_bytes == 231424


@pytest.mark.parametrize(
    ("made", "columns", "registers"),
    [
        (backward(64, block_m=128), (64, 64), (32, 32)),  # 64 rows each
        (backward(128, block_m=80), (64, 64), (40, 40)),  # transposed: 64 columns each, of 80 rows
        (backward(128, block_m=64), (64, 64), (32, 32)),  # some columns each, of 64 rows
        (backward(72, block_m=64), (32, 40), (16, 20)),
        (backward(256), (128, 128), (64, 64)),
    ],
    ids=lambda value: value.label if isinstance(value, BackwardPlan) else "",
)
def test_each_warpgroups_part_of_dq(made: BackwardPlan, columns: tuple[int, int], registers: tuple[int, int]) -> None:
    assert (made.dq_columns, made.dq_registers) == (columns, registers)
    parts = sum(128 * count * 4 for count in registers)  # bytes: 128 threads of float32
    assert parts == made.block_m * made.spec.head_dim_qk * 4, "together they are all of it"
    assert {row.name: row.bytes for row in made.smem}["dq"] == parts // made.dq_passes


@pytest.mark.parametrize("seqlen_q", [1, 80, 81, 229])
def test_the_cpu_path_takes_them_and_is_right(seqlen_q: int) -> None:
    made, shapes = backward(128, block_m=80), [(2, seqlen_q, 4, 128), *[(2, 150, 2, 128)] * 2]
    q, k, v = make_inputs("normal", *shapes, dtype=torch.bfloat16)
    out, lse = flashgen.attention(q, k, v, return_lse=True)
    generator = torch.Generator().manual_seed(5)
    dout, dlse = (torch.randn(x.shape, generator=generator).to(x.dtype) for x in (out, lse))
    got = attend_backward(made, dout, q, k, v, out, lse, dlse, 128**-0.5)
    verdict = judge_gradients(got, dout, q, k, v, dlse=dlse)  # by autograd in float64
    assert verdict.ok, verdict


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "mask", "found"), [(128, "full", True), (128, "causal", True), (120, "full", False)]
)
def test_the_search_reaches_them_where_they_may_be(head_dim: int, mask: str, found: bool, deterministic: bool) -> None:
    spec = KernelSpec.backward(head_dim=head_dim, mask=mask, deterministic=deterministic)
    bases = [plan_backward(spec, request) for request in tiles(spec)]
    every = [made for base in bases for made in (base, *(plan_backward(spec, each) for each in siblings(base)))]
    assert {(made.block_m, made.block_n) for made in bases} == {(64, 128), (64, 64), *([(80, 128)] if found else [])}
    assert sum(made.block_m == 80 for made in bases) == found, "once: narrower swizzles of q and k are refused"
    assert any((made.block_m, made.stages_q) == (80, 1) for made in every) is found
    assert (plan_backward(spec).block_m == 80) is found, "what ships for long sequences is one of them"
