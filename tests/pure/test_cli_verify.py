"""``flashgen verify`` and ``list`` without a GPU: what they make of verifications."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashgen import build as build_module
from flashgen import loading, receipts
from flashgen import verify as verify_module
from flashgen.callable_kernel import Code, Kernel
from flashgen.generator import plan_entry
from flashgen.receipts import Receipt, read_receipts, write_receipts
from flashgen.verify import Failure, Verification
from tests.pure.command_line import Run

SHIPPED = "attention_fwd_fa3_sm90a_bf16_d72_causal"
# The spec that ships, with a tile that does not.
OTHER = "kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 72\nmask: causal\ntile: {m: 64, n: 32}\n"
CODE = Code(b"cubin", "5" * 64, {"nvrtc_version": "13.0.88"})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[Failure]:
    """A GPU on which every case fails as the list says, and a compiler that needs no time."""
    failures: list[Failure] = []

    def verify(kernels: Any, *, device: str = "cuda", on_done: Any = None) -> list[Verification]:
        done = [Verification(kernel, "H200", 20, 0.5, 0.001, tuple(failures), 1.0) for kernel in kernels]
        for verification in done:
            on_done(verification)
        return done

    monkeypatch.setattr(verify_module, "verify", verify)
    monkeypatch.setattr(build_module, "build_all", lambda *_: build_module.BuildResult())
    monkeypatch.setattr(loading, "get_kernel", lambda entry: Kernel(plan_entry(entry), lambda: CODE))
    return failures


def test_verify_writes_receipts_of_what_ships(run: Run, gpu: list[Failure], tmp_path: Path) -> None:
    result = run("verify", SHIPPED, "--receipts", "r.json")
    assert result.exit_code == 0
    assert "1 of 1 kernels right on H200" in result.stdout
    assert read_receipts(tmp_path / "r.json")[SHIPPED].sha256 == CODE.sha256
    (tmp_path / "other.yaml").write_text(OTHER)
    assert run("verify", "other.yaml", "--receipts", "other.json").exit_code == 0
    assert not (tmp_path / "other.json").exists(), "another tile's run says nothing of the shipped kernel"
    assert run("verify", SHIPPED, "--no-receipts", "--receipts", "no.json").exit_code == 0
    assert not (tmp_path / "no.json").exists()


def test_verify_ends_with_1_when_a_kernel_is_wrong(run: Run, gpu: list[Failure], tmp_path: Path) -> None:
    gpu.append(Failure("batch 1, seqlen 1 x 1", "WRONG: max error 1"))
    result = run("verify", SHIPPED, "--receipts", "r.json", "--json")
    assert result.exit_code == 1
    (row,) = json.loads(result.stdout)
    assert row["failures"] == [{"case": "batch 1, seqlen 1 x 1", "reason": "WRONG: max error 1"}]
    shown = run("verify", SHIPPED, "--no-receipts")
    assert f"{SHIPPED}: batch 1, seqlen 1 x 1: WRONG" in shown.stderr
    assert read_receipts(tmp_path / "r.json") == {}


def test_without_a_gpu_nothing_is_compiled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(build_module, "build_all", lambda *_: pytest.fail("compiled"))
    for command in ("verify", "bench"):
        result = run(command, SHIPPED)
        assert result.exit_code == 1
        assert "no CUDA device" in result.stderr


def test_list_tells_what_is_verified(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    monkeypatch.setattr(receipts, "RECEIPTS", path)
    monkeypatch.setattr(receipts.read_receipts, "__defaults__", (path,))
    assert json.loads(run("list", SHIPPED, "--json").stdout)[0]["verified"] == "-"
    write_receipts({SHIPPED: Receipt("5" * 64, "nvrtc 13.0.88", "H200", "2026-01-01", 20, 0.5)}, path)
    (row,) = json.loads(run("list", SHIPPED, "--json").stdout)
    assert (row["built"], row["cached"], row["verified"]) == (False, False, "nvrtc 13.0.88")
    assert (row["built_by"], row["cached_by"]) == (None, None)
    assert "nvrtc 13.0.88" in run("list", SHIPPED).stdout
    path.write_text("{}")
    damaged = run("list", SHIPPED)
    assert (damaged.exit_code, damaged.stdout) == (1, "")
    assert "no file of receipts" in damaged.stderr
