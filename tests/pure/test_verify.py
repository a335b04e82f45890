"""Verification finds what is wrong with a kernel; receipts hold what was verified. Kernels run on the CPU path here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flashgen import receipts
from flashgen.callable_kernel import Code, Kernel
from flashgen.cases import LAYOUTS, Case, cases
from flashgen.errors import ArtifactError, DeviceError
from flashgen.generator import KernelSpec, plan
from flashgen.receipts import Receipt, read_receipts, receipt_of, record, verified, write_receipts
from flashgen.verify import verify, verify_kernel

CPU = torch.device("cpu")
FEW = [
    Case(1, 5, 9, 2, 1, layout="surrounded"),
    Case(2, 9, 5, 2, 2, "wide", "transposed"),
    Case(1, 130, 200, 2, 1, "logits_-100", "misaligned"),
    Case(1, 7, 7, 4, 4, "outliers", "packed"),
    Case(2, 6, 8, 4, 2, layout="expanded_heads"),
    Case(2, 6, 8, 4, 2, layout="expanded_batch", softmax_scale=0.5),
    Case(1, 6, 8, 2, 2, layout="strided_last"),
    Case(1, 6, 8, 2, 2, "logits_-10000", "odd_rows"),
]


def kernel(kind: type[Kernel] = Kernel, mask: str = "causal", name: int = 16) -> Kernel:
    spec = KernelSpec.forward(head_dim=name, mask=mask)
    return kind(plan(spec), lambda: Code(b"cubin", "5" * 64, {"nvrtc_version": "13.0.88"}))


def spoilt(change: Callable[[Tensor, Tensor], None]) -> Kernel:
    class Spoilt(Kernel):
        def into(self, q, k, v, out, lse=None, **keywords):  # type: ignore[no-untyped-def]
            super().into(q, k, v, out, lse, **keywords)
            change(out, lse)

    return kernel(Spoilt)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_right_kernel_passes_every_layout(mask: str) -> None:
    done = verify_kernel(kernel(mask=mask), CPU, FEW)
    assert done.ok, done.failures
    assert (done.cases, done.device) == (8, "cpu")
    assert 0 < done.worst_error <= 1


def test_the_cases_straddle_the_tile_and_use_everything() -> None:
    made = plan(KernelSpec.forward(head_dim=128, mask="causal"))
    found = cases(made)
    assert {case.kind for case in found} == {
        "normal",
        "wide",
        "outliers",
        "rising",
        "steep",
        "logits_-100",
        "logits_-10000",
    }
    assert {case.layout for case in found} == set(LAYOUTS)
    for size, lengths in ((made.block_m, {c.seqlen_q for c in found}), (made.block_n, {c.seqlen_k for c in found})):
        assert {size, size + 1} <= lengths or {size - 1, size, size + 1} & lengths
    assert any(case.seqlen_q > case.seqlen_k for case in found)
    assert any(case.seqlen_q < case.seqlen_k for case in found)
    assert {case.heads_q // case.heads_kv for case in found} >= {1, 2, 3, 4, 8}
    tiles = [-(-case.seqlen_q // made.block_m) * case.batch * case.heads_q for case in found]
    assert max(tiles) > 132  # every multiprocessor of an H200 gets a second tile


def test_layouts_lie_as_they_say_and_hold_the_same_numbers() -> None:
    made = plan(KernelSpec.forward(head_dim=16))
    plain = Case(2, 6, 6, 4, 2).inputs(made, CPU, 3)
    for layout in ("surrounded", "transposed", "packed", "misaligned", "strided_last", "odd_rows"):
        laid = Case(2, 6, 6, 4, 2, layout=layout).inputs(made, CPU, 3)
        assert all(torch.equal(a, b) for a, b in zip(plain, laid, strict=True)), layout
        assert not all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in laid), layout
    assert Case(2, 6, 6, 4, 2, layout="expanded_heads").inputs(made, CPU, 3)[1].stride(2) == 0
    assert Case(2, 6, 6, 4, 2, layout="expanded_batch").inputs(made, CPU, 3)[2].stride(0) == 0


def write_after(out: Tensor, lse: Tensor) -> None:
    out.as_strided(out.shape, out.stride(), out.storage_offset() + out.stride(1))[:, -1] = 0


def write_lse_after(out: Tensor, lse: Tensor) -> None:
    lse.as_strided((1,), (1,), lse.numel()).zero_()


def random_bit(out: Tensor, lse: Tensor) -> None:
    lse.flatten()[0] += torch.rand(()).item() * 1e-5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda out, lse: out[:, -1].fill_(math.nan), "WRONG"),
        (lambda out, lse: out.mul_(1.1), "WRONG"),
        (lambda out, lse: lse.add_(0.1), "WRONG"),
        (write_after, "memory outside the result"),
        (write_lse_after, "memory outside the result"),
        (random_bit, "two runs on the same input differ"),
    ],
    ids=["nan", "scaled", "lse", "stray", "stray_lse", "unsteady"],
)
def test_each_fault_is_found(change: Callable[[Tensor, Tensor], None], said: str) -> None:
    done = verify_kernel(spoilt(change), CPU, FEW[:1])
    assert not done.ok
    assert said in done.failures[0].reason
    assert done.failures[0].case.startswith("batch 1, seqlen 5 x 9")


def test_a_kernel_that_raises_is_a_failure_and_the_next_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(out: Tensor, lse: Tensor) -> None:
        raise RuntimeError("launch failed")

    monkeypatch.setattr("flashgen.verify.cases", lambda plan: FEW[:1])
    heard: list[str] = []
    done = verify([spoilt(broken), kernel()], device="cpu", on_done=lambda each: heard.append(each.name))
    assert [each.ok for each in done] == [False, True]
    assert done[0].failures[0].reason == "RuntimeError: launch failed"
    assert heard == [each.name for each in done]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(DeviceError, match="no CUDA device"):
        verify([kernel()])


def test_receipts_are_written_merged_and_withdrawn(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    assert read_receipts(path) == {}
    old = Receipt("1" * 64, "nvrtc 12.9", "NVIDIA H200", "2026-01-01", 3, 0.5)
    good = verify_kernel(kernel(), CPU, FEW[:2])
    write_receipts({"zzz": old, good.name: old}, path)
    kept = record([good], path)
    assert list(kept) == [good.name, "zzz"]
    assert kept == read_receipts(path)
    receipt = kept[good.name]
    assert (receipt.sha256, receipt.compiler, receipt.gpu, receipt.cases) == ("5" * 64, "nvrtc 13.0.88", "cpu", 2)
    assert verified(good.name, "5" * 64, kept)
    assert not verified(good.name, "6" * 64, kept)
    assert not verified("other", "5" * 64, kept)
    bad = verify_kernel(spoilt(lambda out, lse: out.mul_(2)), CPU, FEW[:1])
    with pytest.raises(ValueError, match="gets no receipt"):
        receipt_of(bad)
    assert list(record([bad], path)) == ["zzz"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": 9, "kernels": {}}', '{"schema": 1}', json.dumps({"schema": 1, "kernels": {"a": {"x": 1}}})],
)
def test_a_file_that_holds_no_receipts_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "verified.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match="is no file of receipts"):
        read_receipts(path)
    assert path.read_text() == text


def test_the_receipts_that_ship_can_be_read() -> None:
    assert all(len(receipt.sha256) == 64 for receipt in read_receipts(receipts.RECEIPTS).values())
