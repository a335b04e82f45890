"""Kernels built ahead of time: preferred once loaded, never compiled beside, refused when changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import flashgen
from flashgen import calls, loading
from flashgen.build import build_all
from flashgen.callable_kernel import Code, Kernel
from flashgen.generator import ConfigEntry, KernelPlan
from flashgen.testing import judge
from tests.device.helpers import MASKS, difference, inputs, kernel_of, plan_for, run, smaller_tile


def loadable() -> list[KernelPlan]:
    return [smaller_tile(plan_for(64, "bf16", mask, 300)) for mask in MASKS] + [plan_for((40, 72), "fp16", "causal")]


def kernels() -> list[KernelPlan]:
    return [*loadable(), *(plan_for(64, "bf16", mask, 300) for mask in MASKS)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    entries = [ConfigEntry(plan.spec, plan.request, "tests/device") for plan in loadable()]
    result = build_all(entries, tmp_path / "build", strict=False)
    assert not result.failed, result.failed
    return tmp_path / "build"


@pytest.fixture
def alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has just started, with an empty cache and no leave to compile."""
    for name in ("_kernels", "_preferred", "_by_spec"):
        monkeypatch.setattr(loading, name, {})
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FLASHGEN_NO_COMPILE", "1")
    calls.forget_calls()
    yield
    torch.cuda.synchronize()
    monkeypatch.undo()
    calls.forget_calls()


@pytest.mark.usefixtures("alone")
def test_loaded_kernels_are_preferred_and_a_miss_raises(folder: Path) -> None:
    plan = plan_for(64, "bf16", "causal", 300)
    q, k, v = inputs(plan, 2, (203, 300), (4, 2))
    with pytest.raises(flashgen.NoCompileError, match="neither loaded nor in the cache"):
        flashgen.attention(q, k, v, causal=True)
    library = flashgen.load(folder)
    assert len(library) == 3
    for mine in loadable():
        tensors = inputs(mine, 2, (203, 300), (4, 2))
        causal = mine.spec.mask == "causal"
        got = flashgen.attention(*tensors, causal=causal, return_lse=True)
        kernel = library[mine.name]
        assert loading.kernel_for(mine.spec, 300) is kernel
        assert kernel.plan == mine, "the kernel is not the one that was built"
        assert not difference(got, run(kernel, *tensors))
        verdict = judge(*got, *tensors, causal=causal)
        assert verdict.ok, f"{mine.name}: {verdict}"
    other = inputs(plan_for(64, "fp16", "causal", 300), 2, (203, 300), (4, 2))
    with pytest.raises(flashgen.NoCompileError, match="fp16_d64_causal"):
        flashgen.attention(*other, causal=True)
    flashgen.unload()
    with pytest.raises(flashgen.NoCompileError):
        flashgen.attention(q, k, v, causal=True)


def test_loading_changes_the_kernel_of_calls_that_are_remembered(folder: Path) -> None:
    """The two tiles differ in their last bits, so that it shows which one ran."""
    plan = plan_for(64, "bf16", "causal", 300)
    q, k, v = inputs(plan, 2, (1000, 300), (8, 2), kind="wide")
    before = flashgen.attention(q, k, v, causal=True, return_lse=True)
    mine = flashgen.load(folder)[smaller_tile(plan).name]
    try:
        loaded = flashgen.attention(q, k, v, causal=True, return_lse=True)
        expected = run(mine, q, k, v)
    finally:
        flashgen.unload()
    assert difference(expected, before), "both kernels give the same bits: this tests nothing"
    assert not difference(loaded, expected)
    assert not difference(flashgen.attention(q, k, v, causal=True, return_lse=True), before)


@pytest.mark.parametrize("what", ["cubin", "manifest"])
@pytest.mark.usefixtures("alone")
def test_what_was_changed_is_refused_and_nothing_of_it_is_used(folder: Path, what: str) -> None:
    path = folder / loadable()[0].name / "kernel.cubin" if what == "cubin" else folder / "manifest.json"
    content = bytearray(path.read_bytes())
    place = len(content) // 2 if what == "cubin" else content.index(b'"block_n": 48') + 11
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(flashgen.ArtifactError, match="sha256"):
        flashgen.load(folder)
    q, k, v = inputs(plan_for(64, "bf16", "causal", 300), 1, (5, 300), (2, 2))
    with pytest.raises(flashgen.NoCompileError):
        flashgen.attention(q, k, v, causal=True)


def test_machine_code_that_the_driver_refuses_is_an_error_and_harms_no_later_call() -> None:
    plan = plan_for(64, "bf16", "causal", 300)
    q, k, v = inputs(plan, 1, (65, 300), (2, 2))
    broken = Kernel(plan, lambda: Code(b"no machine code at all", "0" * 64, {}))
    expected = run(kernel_of(plan), q, k, v)
    for _ in range(2):
        with pytest.raises(flashgen.LaunchError, match=f"loading {plan.name} failed"):
            broken(q, k, v)
    assert not difference(run(kernel_of(plan), q, k, v), expected)
    torch.cuda.synchronize()
