"""What is said of a plan: its numbers, a config for a new kernel, and the plan as YAML."""

from __future__ import annotations

import pytest

from flashgen.generator import (
    ConfigError,
    KernelPlan,
    KernelSpec,
    PlanRequest,
    describe,
    load_config,
    new_config,
    plan,
    plan_entry,
    to_yaml,
)

D128 = KernelSpec.forward(head_dim=128)


def test_describe() -> None:
    made = plan(D128, PlanRequest(block_m=128, block_n=128))
    about = describe(made)
    assert about.flop == 2 * 128 * 128 * 256
    assert about.bytes == 128 * 256 * 2
    assert about.flop_per_byte == 128
    assert (about.matrix_cycles, about.exp2_cycles) == (2048, 1024)
    assert about.bound == "matrix"
    assert about.matrix_share == 1.0
    assert (about.accumulator_registers, about.accumulator_limit) == (160, 216)
    assert (about.registers, about.register_pool) == (64512, 64512)
    assert about.smem_bytes == sum(row.bytes for row in about.smem) == made.smem_bytes
    assert describe(plan(KernelSpec.forward(head_dim=64))).bound == "both"
    assert describe(plan(KernelSpec.forward(head_dim=32))).bound == "exp2"
    assert describe(plan(KernelSpec.forward(head_dim=72))).matrix_share == 144 / 152


@pytest.mark.parametrize("dims", [(72, None), (8, None), (192, 128), (104, 256)])
def test_new_config_loads_and_plans(dims: tuple[int, int | None]) -> None:
    text = new_config(dims[0], "sm90a", head_dim_v=dims[1])
    entries = load_config(text)
    assert len(entries) == 4
    assert {entry.spec.head_dim_v for entry in entries} == {dims[1] or dims[0]}
    made = plan_entry(entries[0])
    assert f"{{m: {made.block_m}, n: {made.block_n}}}" in text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_new_config_refuses_what_the_config_would() -> None:
    with pytest.raises(ConfigError, match="nearest: 56 or 64"):
        new_config(63)


def test_to_yaml_is_the_plan() -> None:
    for spec in (
        D128,
        KernelSpec.forward(head_dim=120),
        KernelSpec.forward(head_dim=192, head_dim_v=128, mask="causal", dtype="fp16"),
    ):
        made: KernelPlan = plan(spec)
        (entry,) = load_config(to_yaml(made))
        assert plan_entry(entry) == made
