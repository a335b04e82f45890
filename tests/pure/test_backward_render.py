"""What is made of a backward's plan: CUDA text, YAML, the numbers that are shown. And the configs that ship."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from flashgen.generator import (
    BackwardPlan,
    BackwardRequest,
    KernelSpec,
    describe,
    load_config,
    plan,
    plan_backward,
    plan_entry,
    render,
    shipped_configs,
    to_yaml,
)
from flashgen.generator.paths import CONFIGS, TEMPLATES
from flashgen.generator.shipped import shipped_path

HEAD_DIMS = [(d, d) for d in (32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256)] + [(192, 128)]
SHIPPED = sorted(CONFIGS.glob("*/attention_bwd_*.yaml"))


def test_config_struct_holds_the_plan() -> None:
    spec = KernelSpec.backward(head_dim=192, head_dim_v=128, mask="causal", dtype="fp16", deterministic=True)
    made = plan_backward(spec, BackwardRequest(stages_q=1, dq_passes=2, swizzle_qk=64, swizzle_v=64))
    text = render(made, "configs/sm90/attention_bwd_d192x128.yaml:2")
    assert dict(re.findall(r"static constexpr \w+ (k\w+) = (\w+);", text)) == {
        "kHeadDimQK": "192",
        "kHeadDimV": "128",
        "kBlockM": "64",
        "kBlockN": "64",
        "kStagesQ": "1",
        "kStagesDo": "2",
        "kStagesDs": "1",
        "kDqPasses": "2",
        "kStoresFirst": "true",
        "kConsumerWarpgroups": "2",
        "kChunkQK": "32",
        "kChunkV": "32",
        "kThreads": "384",
        "kProducerRegisters": "24",
        "kConsumerRegisters": "240",
        "kSmemBytes": str(made.smem_bytes),
        "kSplitRoles": "true",
        "kKeysInRegisters": "false",
        "kMaskLoops": "false",
        "kLateP": "false",
        "kPersistent": "false",
        "kDeterministic": "true",
    }
    assert dict(re.findall(r"using (\w+) = ([\w:]+);", text)) == {
        "Element": "cutlass::half_t",
        "Mask": "flashgen::CausalMask",
    }
    assert text.startswith(f"// {made.name}\n")
    assert "configs/sm90/attention_bwd_d192x128.yaml:2" in text


@pytest.mark.parametrize("chosen", [False, True])
def test_keys_in_registers_and_storing_first_reach_the_kernel(chosen: bool) -> None:
    request = BackwardRequest(block_m=64, block_n=128, keys_in_registers=chosen, stores_first=not chosen)
    text = render(plan_backward(KernelSpec.backward(head_dim=96), request))
    said = dict(re.findall(r"static constexpr bool (k\w+) = (\w+);", text))
    assert said["kKeysInRegisters"] == str(chosen).lower()
    assert said["kStoresFirst"] == str(not chosen).lower()


@pytest.mark.parametrize(
    ("deterministic", "asked", "ordered"),
    [(False, None, False), (False, False, False), (False, True, True), (True, None, True), (True, True, True)],
)
def test_the_order_of_the_keys_reaches_the_kernel(deterministic: bool, asked: bool | None, ordered: bool) -> None:
    spec = KernelSpec.backward(head_dim=128, mask="causal", deterministic=deterministic)
    text = render(plan_backward(spec, BackwardRequest(keys_in_order=asked)))
    said = dict(re.findall(r"static constexpr bool (k\w+) = (\w+);", text))
    assert said["kDeterministic"] == str(ordered).lower()


@pytest.mark.parametrize(("rows", "loops", "late"), [(64, False, False), (64, True, False), (80, True, True)])
def test_loops_for_masks_and_when_p_is_converted_reach_the_kernel(rows: int, loops: bool, late: bool) -> None:
    request = BackwardRequest(block_m=rows, block_n=128, mask_loops=loops)
    text = render(plan_backward(KernelSpec.backward(head_dim=128, mask="causal"), request))
    said = dict(re.findall(r"static constexpr bool (k\w+) = (\w+);", text))
    assert (said["kMaskLoops"], said["kLateP"]) == (str(loops).lower(), str(late).lower())


def test_there_is_an_entry_for_each_kernel() -> None:
    made = plan_backward(KernelSpec.backward(head_dim=72))
    entries = re.findall(r'extern "C" __global__ void __launch_bounds__\(.*?\) (\w+)\(', render(made))
    assert tuple(entries) == made.entry_points


def test_origin_changes_comments_and_nothing_else() -> None:
    made = plan_backward(KernelSpec.backward(head_dim=64))

    def code(origin: str) -> list[str]:
        return [line for line in render(made, origin).splitlines() if not line.startswith("//")]

    assert code("a.yaml:1") == code("") == code("*/ evil();\n#include <x>")


def test_the_template_is_short() -> None:
    text = (TEMPLATES / "attention_bwd.cu.jinja").read_text("utf-8")
    assert "{% for" not in text
    assert len(text.splitlines()) <= 60


def test_the_unrendered_index_is_a_plan() -> None:
    text = (TEMPLATES / "index_bwd.cu").read_text("utf-8")
    made = plan_backward(
        KernelSpec.backward(head_dim=128, mask="causal"),
        BackwardRequest(block_m=64, block_n=128, stages_q=2, stages_do=2, dq_passes=1),
    )
    numbers = dict(re.findall(r"(k\w+) = (\d+)", text))
    assert numbers["kSmemBytes"] == str(made.smem_bytes)
    assert numbers.items() <= dict(re.findall(r"(k\w+) = (\d+)", render(made))).items()


@pytest.mark.parametrize("dims", [(8, 8), (64, 64), (120, 120), (192, 128), (24, 256), (256, 256)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_to_yaml_is_the_plan(dims: tuple[int, int], deterministic: bool) -> None:
    spec = KernelSpec.backward(head_dim=dims[0], head_dim_v=dims[1], mask="causal", deterministic=deterministic)
    made = plan(spec)
    (entry,) = load_config(to_yaml(made))
    assert plan_entry(entry) == made
    assert entry.request == made.request
    assert set(made.request.explicit) == set(BackwardRequest.__dataclass_fields__)


def test_describe() -> None:
    tile = BackwardRequest(block_m=64, block_n=128)
    about = describe(plan_backward(KernelSpec.backward(head_dim=128), tile))
    assert about.flop == 5 * 2 * 64 * 128 * 128
    assert about.matrix_cycles == about.flop / 4096
    assert about.exp2_cycles == 64 * 128 / 16
    assert (about.bound, about.matrix_share) == ("matrix", 1.0)
    assert about.bytes == 64 * (256 * 2 + 8 + 128 * 4)
    assert (about.accumulator_registers, about.accumulator_limit) == (192, 208)
    assert (about.registers, about.register_pool) == (64512, 64512)
    assert about.smem_bytes == 198656
    assert about.workspace_bytes_per_row == 130 * 4 + 8 / 64
    exact = plan_backward(KernelSpec.backward(head_dim=128, deterministic=True), tile)
    assert describe(exact).workspace_bytes_per_row == about.workspace_bytes_per_row
    assert exact.workspace_bytes(1, 1, 64 * 64) == 64 * 64 * about.workspace_bytes_per_row
    padded = describe(plan_backward(KernelSpec.backward(head_dim=72)))
    assert padded.matrix_share == (5 * 72) / (3 * 72 + 2 * 80)


def test_the_set_that_ships_is_complete() -> None:
    assert set(SHIPPED) <= set(shipped_configs())
    specs = [entry.spec for path in SHIPPED for entry in load_config(path)]
    assert len(specs) == len(set(specs))
    assert {spec.any_length for spec in specs} == {
        KernelSpec.backward(head_dim=qk, head_dim_v=v, dtype=dtype, mask=mask, deterministic=deterministic)
        for (qk, v), dtype, mask, deterministic in itertools.product(
            HEAD_DIMS, ("bf16", "fp16"), ("full", "causal"), (False, True)
        )
    }


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_is_planned_and_rendered_as_written(path: Path) -> None:
    for entry in load_config(path):
        made = plan_entry(entry)
        assert isinstance(made, BackwardPlan)
        assert shipped_path(made.spec) == path
        assert plan(made.spec) == made, "of its range"
        assert entry.request.names_tile
        assert {name: getattr(made, name) for name in entry.request.explicit} == entry.request.explicit
        assert f"{made.name}_postprocess" in render(made, entry.origin)
