"""Folders that hold backwards beside forwards, and which backward serves a spec."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import flashgen
from flashgen import loading, training
from flashgen.artifacts import MANIFEST, read_manifest, write_kernel
from flashgen.backward_kernel import BackwardKernel
from flashgen.callable_kernel import Kernel
from flashgen.cpu_backward import attend_backward
from flashgen.errors import ArgumentError, ArtifactError
from flashgen.generator import BackwardPlan, BackwardRequest, KernelSpec, plan, plan_backward
from flashgen.generator.request import Scheduler
from flashgen.params import backward_digest, forward_digest
from flashgen.tune_space import incumbent_of
from tests.pure.test_loading import built

pytestmark = pytest.mark.usefixtures("no_kernels")
YAML = "kernel: attention_bwd\narch: sm90a\ndtype: bf16\nhead_dim: 80\nmask: full\n"


def test_yaml_spec_and_plan_give_the_same_backward() -> None:
    spec = KernelSpec.backward(head_dim=80)
    kernel = flashgen.get_kernel(YAML)
    assert isinstance(kernel, BackwardKernel)
    assert kernel is flashgen.get_kernel(spec) is flashgen.get_kernel(plan(spec)) is loading.kernel_for(spec, 1000)
    assert (kernel.spec, kernel.name) == (spec, "attention_bwd_fa3_sm90a_bf16_d80_full")
    assert "BackwardKernel attention_bwd" in repr(kernel)


def test_a_folder_of_both_is_loaded_and_preferred(tmp_path: Path) -> None:
    forward, spec = KernelSpec.forward(head_dim=72), KernelSpec.backward(head_dim=72, deterministic=True)
    made = plan_backward(spec, BackwardRequest(block_m=64))
    write_kernel(tmp_path, built(plan(forward), b"FORWARD"))
    write_kernel(tmp_path, built(made, b"BACKWARD"))  # type: ignore[arg-type]
    records = json.loads((tmp_path / MANIFEST).read_text())["kernels"]
    assert records[forward.name]["params"] == forward_digest()
    assert records[spec.name]["params"] == backward_digest()
    assert read_manifest(tmp_path).kernels[spec.name].plan == made
    library = flashgen.load(tmp_path)
    assert {name: type(kernel) for name, kernel in library.items()} == {
        forward.name: Kernel, spec.name: BackwardKernel
    }  # fmt: skip
    assert loading.kernel_for(spec, 500) is library[spec.name]
    assert library[spec.name].loaded.cubin == b"BACKWARD"
    assert loading.kernel_for(KernelSpec.backward(head_dim=72)) is not library[spec.name]


def test_a_scheduler_that_is_none_is_refused_in_a_manifest(tmp_path: Path) -> None:
    made = plan_backward(KernelSpec.backward(head_dim=64))
    write_kernel(tmp_path, built(made, b"B"))  # type: ignore[arg-type]
    (kernel,) = read_manifest(tmp_path).kernels.values()
    assert isinstance(kernel.plan, BackwardPlan)
    assert kernel.plan.scheduler is Scheduler.dynamic
    text = (tmp_path / MANIFEST).read_text()
    (tmp_path / MANIFEST).write_text(text.replace('"scheduler": "dynamic"', '"scheduler": "every"'))
    with pytest.raises(ArtifactError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_of_several_that_ship_the_one_meant_for_so_many_keys_is_taken(mask: str, steady: bool) -> None:
    edge = 3072 if steady and mask == "full" else 6144
    spec = KernelSpec.backward(head_dim=128, mask=mask, deterministic=steady)
    short, long = (loading.kernel_for(spec, keys) for keys in (edge - 1, edge))
    begin = 768 if mask == "full" and not steady else 0
    assert (short.spec, long.spec) == (replace(spec, keys_from=begin, keys_below=edge), replace(spec, keys_from=edge))
    assert (short.plan.block_m, long.plan.block_m) == (80 if mask == "full" and not steady else 64, 80)
    assert (loading.kernel_for(spec, 1) is short) == (begin == 0)
    assert loading.kernel_for(spec, 1).plan.block_m == 64
    assert loading.kernel_for(spec, 1 << 20) is long
    assert flashgen.get_kernel(short.spec) is short
    assert flashgen.get_kernel(spec).plan.request == long.plan.request, "without a number: that of long sequences"
    assert incumbent_of(spec, edge - 1).request == short.plan.request


def test_a_loaded_folder_has_backwards_by_the_number_of_keys(tmp_path: Path) -> None:
    spec = KernelSpec.backward(head_dim=64, deterministic=True)
    few, many = replace(spec, keys_below=1024), replace(spec, keys_from=1024)
    for made in (few, many):
        built_plan = plan_backward(made, BackwardRequest(block_m=64))
        write_kernel(tmp_path / made.name, built(built_plan, made.name.encode()))  # type: ignore[arg-type]
        flashgen.load(tmp_path / made.name)
    assert [loading.kernel_for(spec, keys).loaded.cubin.decode() for keys in (1023, 1024)] == [few.name, many.name]
    flashgen.unload()
    flashgen.load(tmp_path / few.name)
    assert loading.kernel_for(spec, 5000).spec == few, "right for any number, and better than compiling"
    assert loading.kernel_for(KernelSpec.backward(head_dim=64), 5000).spec.deterministic is False


def test_training_asks_for_the_backward_of_its_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[BackwardPlan] = []

    def attend(made: BackwardPlan, *given: Any) -> tuple[torch.Tensor, ...]:
        asked.append(made)
        return attend_backward(made, *given)

    monkeypatch.setattr(training, "attend_backward", attend)
    for keys in (3071, 3072):
        q, k, v = (torch.randn(1, n, 1, 128).bfloat16().requires_grad_() for n in (3, keys, keys))
        torch.autograd.grad(flashgen.attention(q, k, v, deterministic=True).sum(), (q, k, v))
    name = "attention_bwd_fa3_sm90a_bf16_d128_full_deterministic"
    assert [made.name for made in asked] == [f"{name}_below3072", f"{name}_from3072"]


def test_a_kernel_of_a_range_serves_any_number_of_keys() -> None:
    short = loading.kernel_for(KernelSpec.backward(head_dim=128), 5)
    q, k, v = (torch.randn(1, n, 1, 128).bfloat16() for n in (3, 900, 900))
    out, lse = flashgen.attention(q, k, v, return_lse=True)
    assert [x.shape for x in short(torch.randn_like(out), q, k, v, out, lse)] == [q.shape, k.shape, v.shape]


def test_a_backward_that_takes_other_arguments_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kernel(tmp_path, built(plan_backward(KernelSpec.backward(head_dim=80)), b"B"))  # type: ignore[arg-type]
    monkeypatch.setattr("flashgen.artifacts.backward_digest", lambda: "0" * 64)
    with pytest.raises(ArtifactError, match="takes the arguments of another flashgen"):
        flashgen.load(tmp_path)


def test_a_backward_is_called_and_refuses_what_is_not_its_own() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, n, 2, 80).bfloat16().requires_grad_() for n in (5, 9, 9))
    out, lse = flashgen.attention(q, k, v, return_lse=True)
    dout = torch.randn_like(out)
    expected = torch.autograd.grad(out, (q, k, v), dout)
    q, k, v, out, lse = (x.detach() for x in (q, k, v, out, lse))
    kernel = flashgen.get_kernel(YAML)
    for got, want in zip(kernel(dout, q, k, v, out, lse), expected, strict=True):
        assert torch.equal(got, want)
    with pytest.raises(ArgumentError, match=r"kernel .*_d80_full: got tensors of .*_d64_full"):
        kernel(*(x[..., :64] for x in (dout, q, k, v, out)), lse)
    with pytest.raises(ArgumentError, match="dk: its memory overlaps that of k"):
        kernel.into(dout, q, k, v, out, lse, None, torch.empty_like(q), k, torch.empty_like(v))
    with pytest.raises(ArgumentError, match="dq: got strides"):
        kernel.into(
            dout, q, k, v, out, lse, None, q.new_empty(*q.shape, 2)[..., 0], torch.empty_like(k), torch.empty_like(v)
        )
