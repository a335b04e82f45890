"""A backward is one cubin of three kernels: built, judged as a whole, written and read back like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashgen.artifacts import read_manifest, write_kernel
from flashgen.generator import BackwardPlan, KernelSpec, load_config, plan_entry
from flashgen.kernel import BuiltKernel, build_command, build_kernel, cached_kernel
from flashgen.resources import parse_log


@pytest.fixture(scope="module")
def built() -> BuiltKernel:
    return build_kernel(KernelSpec.backward(head_dim=40, mask="causal", deterministic=True), origin="x.yaml:1")


def test_one_cubin_has_all_three(built: BuiltKernel) -> None:
    assert isinstance(built.plan, BackwardPlan)
    assert all(f".text.{name}\0".encode() in built.cubin for name in built.plan.entry_points)
    assert built.shippable
    # The main kernel has the most: its block's registers, before setmaxnreg hands them out.
    assert built.resources.registers == 168
    found = cached_kernel(built.plan.spec)
    assert found is not None
    assert found.sha256 == built.sha256


def test_read_back(tmp_path: Path, built: BuiltKernel) -> None:
    write_kernel(tmp_path, built)
    (entry,) = read_manifest(tmp_path).kernels.values()
    assert (entry.plan, entry.sha256, entry.resources) == (built.plan, built.sha256, built.resources)
    assert entry.plan.entry_points == built.plan.entry_points
    assert entry.plan.smem_bytes == built.plan.smem_bytes
    assert entry.read_cubin() == built.cubin
    (again,) = load_config(entry.folder / "spec.yaml")
    assert plan_entry(again) == built.plan
    report = json.loads((entry.folder / "report.json").read_text())
    assert report["plan"]["smem_bytes"] == built.plan.smem_bytes


def report(name: str, registers: int, spilled: int) -> str:
    return (
        f"ptxas info    : Compiling entry function '{name}' for 'sm_90a'\n"
        f"ptxas info    : Function properties for {name}\n"
        f"    {spilled} bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 1 barriers\n"
    )


def test_resources_are_of_all_of_them() -> None:
    used = parse_log(report("a_preprocess", 40, 0) + report("a", 168, 8) + report("a_postprocess", 32, 4))
    assert (used.registers, used.spill_stores, used.spill_loads, used.stack_bytes) == (168, 12, 12, 12)
    assert not used.shippable


def test_the_command_that_builds_it() -> None:
    shipped = KernelSpec.backward(head_dim=64, deterministic=True)
    assert build_command(shipped) == f"flashgen build --only {shipped.name} -o build"
    assert build_command(KernelSpec.backward(head_dim=48)) == (
        "flashgen new --kernel attention_bwd --head-dim 48 --arch sm90a > kernel.yaml && "
        "flashgen build kernel.yaml -o build"
    )
