"""The road by commands, on a machine without a GPU: new, build, explain --compile, list, doctor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import flashgen
from flashgen.cli.app import app
from flashgen.sass import count_instructions, find_disassembler, parse_listing
from flashgen.toolchain import nvrtc_version

NAME = "attention_fwd_fa3_sm90a_bf16_d72_causal"


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_from_head_dim_to_a_call(tmp_path: Path) -> None:
    config, folder = tmp_path / "x.yaml", tmp_path / "built"
    config.write_text(run("new", "--head-dim", 72, "--arch", "sm90a"))
    made = json.loads(run("build", config, "-o", folder, "--only", "*_bf16_*_causal", "--json"))
    assert made["failed"] == []
    assert [kernel["name"] for kernel in made["built"]] == [NAME]
    assert sorted(path.name for path in (folder / NAME).iterdir()) == [
        "kernel.cu", "kernel.cubin", "report.json", "spec.yaml"
    ]  # fmt: skip
    again = json.loads(run("build", config, "-o", folder, "--only", NAME, "--json"))["built"][0]
    assert again["cached"]
    assert again["sha256"] == made["built"][0]["sha256"]

    (row,) = json.loads(run("list", NAME, "--built", folder, "--json"))
    version = nvrtc_version()
    assert (row["built"], row["built_by"], row["cached"], row["cached_by"]) == (True, version, True, version)
    assert f"1 kernels by NVRTC {version} in" in run("build", config, "-o", folder, "--only", NAME)
    made_by = f"NVRTC {version}, sha256 {again['sha256']}"
    assert (folder / NAME / "spec.yaml").read_text().startswith(f"# Machine code by {made_by}\n")
    assert f"compiled      by NVRTC {version}" in run("explain", folder / NAME / "spec.yaml"), "it is cached"
    assert "compiled" in run("explain", folder / NAME / "spec.yaml", "--compile")
    (explained,) = json.loads(run("explain", folder / NAME / "spec.yaml", "--compile", "--json"))
    assert explained["compiled"]["sha256"] == again["sha256"], "spec.yaml gives exactly this kernel"

    kernel = flashgen.load(folder)[NAME]
    q, k, v = (torch.randn(1, 70, 2, 72, dtype=torch.bfloat16) for _ in range(3))
    out = kernel(q, k, v)
    flashgen.unload()
    assert isinstance(out, torch.Tensor)
    assert torch.isfinite(out).all()
    assert out.shape == q.shape


def test_doctor_compiles_a_probe() -> None:
    report = json.loads(run("doctor", "--compile", "--json"))
    assert report["can_compile"]
    assert report["findings"][-1]["name"] == "compile"


@pytest.mark.skipif(find_disassembler() is None, reason="no nvdisasm: pip install 'flashgen[sass]'")
def test_instructions_are_counted(tmp_path: Path) -> None:
    run("build", NAME, "-o", tmp_path)
    counts = count_instructions((tmp_path / NAME / "kernel.cubin").read_bytes())
    assert counts["HGMMA"] > 0
    assert counts["UTMALDG"] > 0
    assert "LDL" not in counts
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_a_listing_is_read_without_modifiers_and_predicates() -> None:
    listing = """
        .section .text.k
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_1) ;
        /*0020*/             @UP1 UTMALDG.4D [UR8], [UR4] ;
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
    """
    assert parse_listing(listing) == {"HGMMA": 2, "LDC": 1, "BRA": 1, "UTMALDG": 1}
