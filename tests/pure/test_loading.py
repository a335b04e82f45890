"""One kernel per plan in a process, built once whoever asks; folders of kernels are preferred once loaded."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import flashgen
from flashgen import loading
from flashgen.artifacts import write_kernel
from flashgen.errors import ArgumentError, ArtifactError, ConfigError
from flashgen.generator import KernelPlan, KernelSpec, PlanRequest, plan
from flashgen.kernel import BuiltKernel
from flashgen.resources import Resources
from flashgen.toolchain import Toolchain

pytestmark = pytest.mark.usefixtures("no_kernels")
YAML = "kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 72\nmask: full\n"


def built(made: KernelPlan, cubin: bytes) -> BuiltKernel:
    toolchain = Toolchain("13.0.88", (), "4.2.0", "13.1", "13.1", "0" * 64)
    digest = hashlib.sha256(cubin).hexdigest()
    return BuiltKernel(made, "// source\n", cubin, digest, Resources(168, 0, 0, 0, 0), toolchain, "test", False, 1.0)


def test_yaml_spec_and_plan_give_the_same_kernel() -> None:
    spec = KernelSpec.forward(head_dim=72)
    kernel = flashgen.get_kernel(YAML)
    assert kernel is flashgen.get_kernel(spec) is flashgen.get_kernel(plan(spec))
    assert (kernel.spec, kernel.name, kernel.plan) == (spec, spec.name, plan(spec))
    other = flashgen.get_kernel(YAML + "tile: {m: 64, n: 64}\n")
    assert other is not kernel
    assert (other.plan.block_m, other.plan.block_n) == (64, 64)


def test_a_file_of_yaml_will_do(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(YAML)
    assert flashgen.get_kernel(path) is flashgen.get_kernel(str(path)) is flashgen.get_kernel(YAML)


def test_yaml_of_several_kernels_or_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"got a config of 2 kernels \(.*_d72_full, .*_d72_causal\); expected one"):
        flashgen.get_kernel(YAML.replace("mask: full", "mask: [full, causal]"))
    with pytest.raises(ConfigError, match="63"):
        flashgen.get_kernel(YAML.replace("72", "63"))


def test_a_kernel_runs_on_cpu_tensors_without_being_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "build_kernel", lambda *_: pytest.fail("compiled for a CPU tensor"))
    q, k, v = (torch.randn(1, n, 2, 72).bfloat16() for n in (5, 9, 9))
    kernel = flashgen.get_kernel(YAML)
    assert torch.equal(kernel(q, k, v), flashgen.attention(q, k, v))
    out, lse = kernel(q, k, v, softmax_scale=0.5, return_lse=True)
    expected = flashgen.attention(q, k, v, softmax_scale=0.5, return_lse=True)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_tensors_of_another_spec_are_refused() -> None:
    q = torch.zeros(1, 5, 2, 64).bfloat16()
    with pytest.raises(ArgumentError, match=r"kernel .*_d72_full: got tensors of .*_d64_full"):
        flashgen.get_kernel(YAML)(q, q, q)
    q = torch.zeros(1, 5, 2, 72).half()
    with pytest.raises(ArgumentError, match=r"got tensors of .*_fp16_d72_full"):
        flashgen.get_kernel(YAML)(q, q, q)
    with pytest.raises(ArgumentError, match="q: got 3 dimensions"):
        flashgen.get_kernel(YAML).into(q[0], q[0], q[0], q[0])


def test_threads_that_ask_at_once_build_once(monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[KernelSpec] = []

    def build(spec: KernelSpec, request: PlanRequest) -> BuiltKernel:
        builds.append(spec)
        time.sleep(0.05)
        return built(plan(spec, request), b"CUBIN")

    monkeypatch.setattr(loading, "build_kernel", build)
    spec = KernelSpec.forward(head_dim=64)
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(loading.kernel_for(spec).loaded)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds == [spec]
    assert len(got) == 8
    assert len(set(map(id, got))) == 1


def test_a_kernel_that_is_compiled_in_spite_of_a_complaint_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = built(plan(KernelSpec.forward(head_dim=72)), b"code")
    slow = Resources(168, 0, 0, 0, 0, ("C7515: products are serialized",))
    for resources, said in ((made.resources, ""), (slow, "C7515: products are serialized. `flashgen doctor`")):
        monkeypatch.setattr(loading, "_kernels", {})
        monkeypatch.setattr(loading, "build_kernel", lambda *_, found=resources: replace(made, resources=found))
        caplog.clear()
        assert flashgen.get_kernel(made.plan).code.sha256 == made.sha256
        assert (said in caplog.text) if said else (caplog.text == "")


def test_a_loaded_folder_is_preferred_and_never_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "build_kernel", lambda *_: pytest.fail("compiled what was loaded"))
    spec = KernelSpec.forward(head_dim=64)
    mine = plan(spec, PlanRequest(block_m=64, block_n=64))
    before = loading.kernel_for(spec)
    assert before.plan != mine
    write_kernel(tmp_path, built(mine, b"CUBIN"))
    library = flashgen.load(tmp_path)
    assert list(library) == [spec.name]
    assert loading.kernel_for(spec) is library[spec.name] is flashgen.get_kernel(spec) is flashgen.get_kernel(mine)
    (tmp_path / spec.name / "kernel.cubin").unlink()  # what was checked is what runs
    assert library[spec.name].loaded.cubin == b"CUBIN"
    assert library[spec.name].code.toolchain["nvrtc_version"] == "13.0.88"
    flashgen.unload()
    assert loading.kernel_for(spec) is before


def test_of_several_loaded_kernels_the_one_meant_for_so_many_keys_is_taken(tmp_path: Path) -> None:
    spec = KernelSpec.forward(head_dim=64)
    few, many = replace(spec, keys_below=1024), replace(spec, keys_from=1024)
    tile = PlanRequest(block_m=64, block_n=64)
    for made in (few, many):
        write_kernel(tmp_path / made.name, built(plan(made, tile), b"CUBIN"))
        flashgen.load(tmp_path / made.name)
    assert loading.kernel_for(spec, 1023).spec == few
    assert loading.kernel_for(spec, 1024).spec == many
    flashgen.unload()
    flashgen.load(tmp_path / many.name)
    assert loading.kernel_for(spec, 1).spec == many  # right for any number, and better than compiling


def test_loading_makes_callers_ask_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flashgen import calls

    launcher = calls.Launcher(lambda spec: loading.kernel_for(spec).loaded)
    launcher._calls["key"] = calls.Detour(empty=True)
    write_kernel(tmp_path, built(plan(KernelSpec.forward(head_dim=64)), b"CUBIN"))
    flashgen.load(tmp_path)
    assert launcher._calls == {}


def test_a_changed_or_missing_cubin_is_refused_and_nothing_is_preferred(tmp_path: Path) -> None:
    spec = KernelSpec.forward(head_dim=64)
    write_kernel(tmp_path, built(plan(spec), b"CUBIN"))
    cubin = tmp_path / spec.name / "kernel.cubin"
    cubin.write_bytes(b"CUBIM")
    with pytest.raises(ArtifactError, match="sha256"):
        flashgen.load(tmp_path)
    cubin.unlink()
    with pytest.raises(ArtifactError, match="missing"):
        flashgen.load(tmp_path)
    with pytest.raises(ArtifactError, match="not found"):
        flashgen.load(tmp_path / "nowhere")
    assert loading._preferred == {}


def test_no_compile_makes_a_miss_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLASHGEN_NO_COMPILE", "1")
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(flashgen.NoCompileError, match="neither loaded nor in the cache"):
        loading.kernel_for(KernelSpec.forward(head_dim=200)).loaded  # noqa: B018


def test_kernels_and_libraries_print_what_they_are(tmp_path: Path) -> None:
    kernel = flashgen.get_kernel(YAML)
    shown = SimpleNamespace(**vars(kernel.plan))
    assert repr(kernel) == f"<flashgen.Kernel {kernel.name} {shown.block_m}x{shown.block_n}x{shown.stages}>"
    write_kernel(tmp_path, built(kernel.plan, b"CUBIN"))
    assert repr(flashgen.load(tmp_path)) == f"<flashgen.KernelLibrary {tmp_path}: 1 kernels>"
