"""The acceptance rule over the grid of the contract, by the kernel that flashgen.attention takes for each problem."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest

import flashgen
from flashgen.cases import LAYOUTS, Case
from flashgen.generator import KernelPlan
from flashgen.testing import INPUT_KINDS
from flashgen.verify import run_case
from tests.device.covering import all_pairs, covering, pairs_of
from tests.device.helpers import DEVICE, DTYPES, MASKS, SEQLENS, Complaints, Dims, kernel_of, label, plan_for

HEAD_DIMS: tuple[Dims, ...] = (
    8, 16, 24, 40, 64, 72, 80, 96, 104, 112, 128, 136, 160, 192, 200, 224, 248, 256,
    (192, 128), (128, 64), (96, 128), (40, 72), (256, 8), (8, 256),
)  # fmt: skip
FACTORS: dict[str, tuple[Any, ...]] = {
    "dims": HEAD_DIMS,
    "seqlen_q": SEQLENS,
    "seqlen_k": SEQLENS,
    "mask": MASKS,
    "dtype": tuple(DTYPES),
    "batch": tuple(range(1, 10)),
    "group": (1, 2, 3, 8),
    "kind": INPUT_KINDS,
    "layout": tuple(LAYOUTS),
}
# Every sq beside every sk under both masks, so that sq < sk, sq = sk and sq > sk straddle every tile.
STARTS = [{"seqlen_q": q, "seqlen_k": k, "mask": mask} for q, k, mask in product(SEQLENS, SEQLENS, MASKS)]


@cache
def rows() -> list[dict[str, Any]]:
    return covering(FACTORS, STARTS)


def plan_of(row: dict[str, Any]) -> KernelPlan:
    return plan_for(row["dims"], row["dtype"], row["mask"], row["seqlen_k"])


def kernels() -> list[KernelPlan]:
    return [plan_of(row) for row in rows()]


def case_of(row: dict[str, Any]) -> Case:
    scores = row["batch"] * row["group"] * row["seqlen_q"] * row["seqlen_k"]
    heads_kv = 1 if scores > 100_000_000 else 2
    return Case(
        row["batch"], row["seqlen_q"], row["seqlen_k"], heads_kv * row["group"], heads_kv, row["kind"], row["layout"]
    )


def test_the_selection_holds_every_pair_of_values_and_kernel_of_every_kind() -> None:
    held = set().union(*(pairs_of(row, list(FACTORS)) for row in rows()))
    assert all_pairs(FACTORS) <= held
    kinds = {(row["dims"], row["dtype"], row["mask"]) for row in rows()}
    assert len(kinds) == len(HEAD_DIMS) * 4, "a head dim lacks a dtype under a mask"


@pytest.mark.parametrize("dims", HEAD_DIMS, ids=label)
def test_results_are_within_the_acceptance_rule(dims: Dims) -> None:
    """Also: the same bits twice, no write outside out and LSE, and flashgen.attention gives what its kernel gives."""
    mine = [row for row in rows() if row["dims"] == dims]
    complaints = Complaints()
    for seed, row in enumerate(mine):
        kernel, case = kernel_of(plan_of(row)), case_of(row)
        what = f"{kernel.name}, {case}, seed {seed}"
        verdict, wrong = run_case(kernel, case, DEVICE, seed)
        complaints.that(what, "" if verdict.ok else str(verdict))
        complaints.that(what, wrong)
        q, k, v = case.inputs(kernel.plan, DEVICE, seed)
        expected = kernel(q, k, v, return_lse=True)
        causal = row["mask"] == "causal"
        complaints.same(f"attention, {what}", flashgen.attention(q, k, v, causal=causal, return_lse=True), expected)
        complaints.same(f"no LSE, {what}", (flashgen.attention(q, k, v, causal=causal),), expected)
    complaints.settle(at_least=4 * len(mine))
