"""The configs that ship: all there, all in their place, all planned and rendered."""

from __future__ import annotations

import itertools
import re

import pytest

from flashgen.generator import (
    ConfigEntry,
    ConfigError,
    KernelSpec,
    Op,
    load_config,
    plan,
    plan_entry,
    render,
    shipped_configs,
)
from flashgen.generator.feasibility import BLOCK_N_STEP
from flashgen.generator.footprint import SMEM_LIMIT
from flashgen.generator.shipped import shipped_path, shipped_request, shipped_spec

HEAD_DIMS = [(d, d) for d in (32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256)] + [(192, 128)]
SHIPPED = [entry for path in shipped_configs() for entry in load_config(path)]


def test_the_set_is_complete() -> None:
    wanted = {
        KernelSpec.forward(head_dim=qk, head_dim_v=v, dtype=dtype, mask=mask)
        for (qk, v), dtype, mask in itertools.product(HEAD_DIMS, ("bf16", "fp16"), ("full", "causal"))
    }
    specs = [entry.spec for entry in SHIPPED if entry.spec.arch == "sm90a" and entry.spec.op is Op.attention_fwd]
    assert len(specs) == len(set(specs))
    assert len(wanted) == 52
    assert {spec.any_length for spec in specs} == wanted


def test_any_number_of_keys_has_one_kernel() -> None:
    """Of forwards and of backwards: their ranges neither overlap nor leave out a number."""
    problems = {entry.spec.any_length for entry in SHIPPED}
    assert {entry.spec.op for entry in SHIPPED if entry.spec != entry.spec.any_length} == set(Op), "both have ranges"
    for problem in problems:
        ranges = [entry.spec for entry in SHIPPED if entry.spec.any_length == problem]
        edges = {0, 1, 10**9} | {edge for spec in ranges for edge in (spec.keys_from, spec.keys_below or 0)}
        for keys in edges | {max(edge - 1, 0) for edge in edges}:
            (meant,) = [spec for spec in ranges if spec.meant_for(keys)]
            assert shipped_spec(problem, keys) == meant


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.spec.name)
def test_each_is_planned_and_rendered_as_written(entry: ConfigEntry) -> None:
    made = plan_entry(entry)
    assert made.smem_bytes <= SMEM_LIMIT
    assert made.block_n % BLOCK_N_STEP == 0
    assert {name: getattr(made, name) for name in entry.request.explicit} == entry.request.explicit
    assert made.name in render(made, entry.origin)


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.spec.name)
def test_each_is_found_by_its_spec(entry: ConfigEntry) -> None:
    assert (
        entry.origin.split(":")[0] == f"configs/{shipped_path(entry.spec).parent.name}/{shipped_path(entry.spec).name}"
    )
    assert shipped_request(entry.spec) == entry.request
    assert plan(entry.spec) == plan_entry(entry)


def test_each_says_its_tile() -> None:
    assert all(entry.request.names_tile for entry in SHIPPED)


def test_configs_are_short() -> None:
    for path in shipped_configs():
        assert 5 <= len(path.read_text("utf-8").splitlines()) <= 112
        documents = re.sub(r"(?m)^#.*\n", "", path.read_text("utf-8")).split("\n---\n")
        assert all(len(each.splitlines()) <= 14 for each in documents), path


def test_listing_by_arch() -> None:
    assert shipped_configs("sm90a") == shipped_configs("sm90")
    assert set(shipped_configs("sm90a")) <= set(shipped_configs())
    assert shipped_configs("sm120") == []
    with pytest.raises(ConfigError, match="closest match: sm90"):
        shipped_configs("sm9")
