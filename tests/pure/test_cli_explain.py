"""``flashgen explain`` without a compiler or a GPU: what it predicts, and what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flashgen import kernel as kernel_module
from flashgen.generator import load_config, plan_entry
from flashgen.kernel import BuiltKernel
from flashgen.resources import Resources
from flashgen.toolchain import Toolchain
from flashgen.tune_state import Measurement, TuneState, time_key
from tests.pure.command_line import Run

# A plan that does not ship, and so has no figures that ship.
CONFIG = "kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 72\nmask: causal\ntile: {m: 64, n: 32}\n"
NAME = "attention_fwd_fa3_sm90a_bf16_d72_causal"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(CONFIG)
    return path


def test_explain_shows_memory_registers_and_roofline(run: Run, config: Path) -> None:
    shown = run("explain", config)
    assert shown.exit_code == 0
    for word in (NAME, "queries x", "tile", "barriers", "232448", "accumulators", "of peak"):
        assert word in shown.stdout
    (document,) = json.loads(run("explain", config, "--json").stdout)
    assert document["name"] == NAME
    assert sum(row["bytes"] for row in document["smem"]) <= document["smem_bytes"] <= document["smem_limit"]


@pytest.mark.parametrize(
    ("keys", "features", "said"),
    [
        (
            "head_dim: 72\ntile: {m: 64, n: 128}",
            "[]",
            "each warpgroup holds dk and dv of 64 keys, its keys in registers, 32 and 40 columns of dq in 1 pass(es), "
            "the first stored, added in any order, swizzle 32 and 32 bytes",
        ),
        (
            "head_dim: 128\ntile: {m: 64, n: 128}\nstores_first: false",
            "[deterministic]",
            "each warpgroup holds dk and dv of 64 keys, 64 and 64 columns of dq in 1 pass(es), zeroed before, "
            "added in the order of the keys, swizzle 128 and 128 bytes",
        ),
        (
            "head_dim: 256",
            "[]",
            "one warpgroup holds dv, the other dk, 128 and 128 columns of dq in 2 pass(es), zeroed before, "
            "added in any order, swizzle 128 and 128 bytes",
        ),
    ],
)
def test_explain_says_how_dq_is_added_and_where_keys_are(
    run: Run, config: Path, keys: str, features: str, said: str
) -> None:
    config.write_text(f"kernel: attention_bwd\narch: sm90a\ndtype: bf16\n{keys}\nfeatures: {features}\n")
    lines = [line.split(maxsplit=1) for line in run("explain", config).stdout.splitlines()]
    facts = {words[0]: words[1] for words in lines if len(words) == 2}
    assert facts["schedule"] == said
    assert ("k" in re.findall(r"(\w+) \d+,", facts["accumulators"])) == ("in registers" in said)


def test_explain_shows_what_was_measured_of_the_plan(run: Run, config: Path, tmp_path: Path) -> None:
    made = plan_entry(load_config(config)[0])
    shape = "fwd d72 causal B4 H16 S4096"
    row = {"shape": shape, "implementation": "flashgen", "tflops": 494.7, "kernel": made.name, "sha256": "c0de"}
    row |= {"plan": made.request.explicit}
    about = {"gpu": "NVIDIA H200", "nvrtc": "13.0.88", "date": "2026-11-30", "matrix_product_tflops": 775.0}
    (tmp_path / "b.json").write_text(json.dumps(about | {"rows": [row]}))
    lines = [line.strip() for line in run("explain", config, "--figures", "b.json").stdout.splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("measured"))
    assert lines[at].split(maxsplit=1)[1] == "B4 H16 S4096: 495 TFLOP/s, 50% of peak, 64% of a matrix product"
    assert lines[at + 1].startswith("on NVIDIA H200, nvrtc 13.0.88, 2026-11-30; compared by plan")
    (document,) = json.loads(run("explain", config, "--figures", "b.json", "--json").stdout)
    (record,) = document["measured"]
    assert record["shapes"] == {shape: {"tflops": 494.7, "share_of_peak": 0.5, "share_of_product": 0.6383}}
    assert (record["sha256"], record["code"]) == ("c0de", "unknown")
    config.write_text(CONFIG.replace("32", "48"))
    assert json.loads(run("explain", config, "--figures", "b.json", "--json").stdout)[0]["measured"] == []
    refused = run("explain", config, "--figures", "none.json")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "none.json" in refused.stderr


def test_explain_compares_what_was_measured_with_the_code_at_hand(
    run: Run, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what `flashgen tune` timed on this machine, whose state lies beside the cache: nothing need be named."""
    made = plan_entry(load_config(config)[0])
    state = TuneState(tmp_path / "cache" / "tune.jsonl")
    key = time_key(made, "fwd d72 causal B4 H16 S4096", "c0de", "NVIDIA GH200", "rival", 20)
    state.add_time(key, Measurement(1.0, 0.1, 1.0, None))
    for sha256, said, code in (("c0de", "on NVIDIA GH200", "same"), ("beef", "other machine code", "other")):
        tools = Toolchain("13.0.88", (), "4.2.0", "3.0.0", "13.0", "d16e57")
        cached = BuiltKernel(made, "", b"cubin", sha256, Resources(168, 0, 0, 0, 0), tools, "", True, 2.5)
        monkeypatch.setattr(kernel_module, "cached_kernel", lambda *_, found=cached, **__: found)
        shown = run("explain", config).stdout
        assert said in shown
        assert "% of a matrix product" not in shown, "not known of it"
        assert f"compiled      by NVRTC 13.0.88 in 2.5 s (cached), 5 bytes, sha256 {sha256}" in shown
        (document,) = json.loads(run("explain", config, "--json").stdout)
        assert document["measured"][0]["code"] == code
        assert document["compiled"]["toolchain"]["nvrtc_version"] == "13.0.88"
        assert "instructions" not in document["compiled"], "only with --compile"
