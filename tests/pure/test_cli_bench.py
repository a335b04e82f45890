"""``flashgen bench`` without a GPU: what it asks to be timed, and what it prints of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flashgen import bench as bench_module
from flashgen import bench_document, bench_timing, host_time
from flashgen import build as build_module
from flashgen.bench import Row
from flashgen.cli import bench_table
from flashgen.generator import load_config, plan_entry
from flashgen.host_time import HostRow
from flashgen.peers import PEERS
from tests.pure.command_line import Run

CONFIG = "kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 48\nmask: causal\ntile: {m: 64, n: 32}\n"
ROW = Row("fwd d72 full B4 H16 S4096", "flashgen", 1.25, 0.01, 512.0, 1.1, 1.2, 0.0)
Asked = list[dict[str, Any]]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A GPU that times in no time, and an efficient backend that takes nothing; what was asked of it."""
    asked: Asked = []

    compiled: list[str] = []

    def built(entries: Any) -> build_module.BuildResult:
        compiled[:] = [entry.spec.name for entry in entries]
        return build_module.BuildResult()

    def bench(shapes: Any, **keywords: Any) -> list[Row]:
        asked.append({"shapes": list(shapes), "compiled": list(compiled)} | keywords)
        rows = [ROW, replace(ROW, implementation="cudnn", over_cudnn=1.0, bar=None)]
        if asked[-1]["shapes"][0].direction == "bwd":
            rows = [replace(row, shape="bwd" + row.shape[3:], direction="bwd", borrowed_bytes=3 << 19) for row in rows]
        if keywords["deterministic"]:
            steady = replace(rows[0], implementation="flashgen deterministic", deterministic_cost=0.125)
            rows.insert(1, steady)
        for shape in asked[-1]["shapes"]:
            keywords["on_done"](shape, rows)
            if "efficient" in keywords["backends"]:
                keywords["on_left_out"](shape, "efficient", "RuntimeError: too [old]")
        return rows

    monkeypatch.setattr(bench_module, "bench", bench)
    monkeypatch.setattr(bench_timing, "matrix_product_tflops", lambda repetitions: 775.4)
    monkeypatch.setattr(bench_document.torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(bench_document, "_driver_version", lambda: "580.95.05")
    monkeypatch.setattr(build_module, "build_all", lambda entries, *_: built(entries))
    monkeypatch.setattr(host_time, "need_gpu", lambda: None)
    monkeypatch.setattr(host_time, "host_time", lambda: [HostRow("torch SDPA", 20.0, 1.0)])
    return asked


def test_the_grid_one_shape_or_given_kernels_are_timed(run: Run, timed: Asked, tmp_path: Path) -> None:
    shown = run("bench", "--shape", "d72 *", "--repetitions", 5)
    assert shown.exit_code == 0, shown.output
    assert {shape.head_dim for shape in timed[0]["shapes"]} == {72}
    assert (timed[0]["repetitions"], timed[0]["kernels"]) == (5, None)
    assert run("bench", "--head-dim", 72, "--seqlen", 64, "--backend", "cudnn").exit_code == 0
    assert [(shape.seqlen_k, shape.heads_kv) for shape in timed[1]["shapes"]] == [(64, 16)]
    assert timed[1]["backends"] == ("cudnn",)
    (tmp_path / "x.yaml").write_text(CONFIG)
    assert run("bench", "x.yaml").exit_code == 0
    assert [shape.head_dim for shape in timed[2]["shapes"]] == [48], "the grid lacks it: a usual shape is taken"
    assert timed[2]["kernels"][0].plan == plan_entry(load_config(tmp_path / "x.yaml")[0])
    assert "torch SDPA" in run("bench", "--host").stdout


def test_the_table_ends_with_who_was_left_out_and_the_ceiling(run: Run, timed: Asked) -> None:
    lines = run("bench", "--shape", "d72 *", "--backend", "efficient", "--backend", "fa3").stdout.splitlines()
    assert lines[1].split() == [*ROW.shape.split(), "flashgen", "1.250", "±", "0.010", "512", "1.10", "1.20"]
    assert lines[2].split() == ["cudnn", "1.250", "±", "0.010", "512", "1.00", "-"]
    assert lines[3:] == [
        "fa3: left out. flash_attn_interface is not installed",
        "efficient: left out of 2 of 2 shapes. RuntimeError: too [old]",
        "matrix product of 8192 x 8192 bf16 on NVIDIA H200: 775 TFLOP/s",
    ]


def test_what_is_not_known_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    row = asdict(replace(ROW, shape="fwd d192x128 full B4 H16 S4096", over_cudnn=None, bar=None))
    bench_table.show({"gpu": "X", "matrix_product_tflops": 775.4, "rows": [row]}, [])
    assert capsys.readouterr().out.splitlines()[1].split()[-3:] == ["512", "-", "-"]


def test_json_is_one_document_and_notes_go_elsewhere(run: Run, timed: Asked) -> None:
    result = run("bench", "--shape", "d72 full*", "--json", "--repetitions", 7, "--backend", "efficient")
    document = json.loads(result.stdout)
    keys = "gpu driver torch cudnn nvrtc date matrix_product_tflops repetitions rows"
    assert list(document) == keys.split()
    assert (document["gpu"], document["driver"], document["matrix_product_tflops"]) == (
        "NVIDIA H200", "580.95.05", 775.4
    )  # fmt: skip
    assert document["repetitions"] == 7
    assert [row["implementation"] for row in document["rows"]] == ["flashgen", "cudnn"]
    assert "efficient: left out of 1 of 1 shapes" in result.stderr


def test_the_backward_is_timed_when_asked_for(run: Run, timed: Asked) -> None:
    lines = run("bench", "--backward", "--deterministic", "--shape", "d72 *").stdout.splitlines()
    assert [shape.name for shape in timed[0]["shapes"]] == [f"bwd d72 {m} B4 H16 S4096" for m in ("full", "causal")]
    assert (timed[0]["deterministic"], timed[0]["kernels"]) == (True, None)
    names = timed[0]["compiled"]
    assert [name.split("_")[1] for name in names] == ["bwd", "fwd", "bwd"] * 2, "a backward needs its forward's kernel"
    assert [name.endswith("_deterministic") for name in names] == [False, False, True] * 2
    assert lines[0].split()[-6:] == ["best", "peer", "MiB", "borrowed", "deterministic", "cost"]
    assert lines[1].split()[-4:] == ["512", "1.10", "1.20", "1.5"]
    assert lines[2].split()[:2] == ["flashgen", "deterministic"]
    assert lines[2].split()[-2:] == ["1.5", "12%"]
    assert run("bench", "--backward", "--shape", "d72 full*").exit_code == 0
    assert timed[1]["deterministic"] is False
    assert len(timed[1]["compiled"]) == 2


def test_a_name_of_a_backward_is_enough(run: Run, timed: Asked) -> None:
    assert run("bench", "--shape", "bwd d64 full B32 H32 S512").exit_code == 0
    assert [shape.name for shape in timed[0]["shapes"]] == ["bwd d64 full B32 H32 S512"]
    assert run("bench", "--shape", "*d64 full*").exit_code == 0
    assert {shape.direction for shape in timed[1]["shapes"]} == {"fwd"}
    own = run("bench", "--backward", "--head-dim", 192, "--head-dim-v", 128, "--seqlen", 64, "--json")
    assert own.exit_code == 0, own.output
    assert [shape.name for shape in timed[2]["shapes"]] == ["bwd d192x128 full B4 H16 S64"]
    assert {row["direction"] for row in json.loads(own.stdout)["rows"]} == {"bwd"}


def test_kernels_of_a_backward_are_timed_by_themselves(run: Run, timed: Asked) -> None:
    assert run("bench", "attention_bwd_*_bf16_d128_causal*").exit_code == 0
    kernels = timed[0]["kernels"]
    assert {kernel.plan.spec.deterministic for kernel in kernels} == {False, True}
    assert {shape.name[:16] for shape in timed[0]["shapes"]} == {"bwd d128 causal "}
    assert any("_fwd_" in name for name in timed[0]["compiled"])
    assert run("bench", "*_bf16_d128_causal*", "--shape", "*S512").exit_code == 0
    assert {shape.direction for shape in timed[1]["shapes"]} == {"fwd"}, "of both directions, the forward"
    assert {kernel.spec.op.value for kernel in timed[1]["kernels"]} == {"attention_fwd"}


def test_dtypes_are_of_all_shapes(run: Run, timed: Asked) -> None:
    assert run("bench", "--shape", "d72 full*", "--dtype", "bf16,fp16").exit_code == 0
    assert [shape.dtype for shape in timed[0]["shapes"]] == ["bf16", "fp16"]
    assert any("_fp16_d72_full" in name for name in timed[0]["compiled"])
    assert run("bench", "--head-dim", 72, "--dtype", "fp16").exit_code == 0
    assert [shape.name for shape in timed[1]["shapes"]] == ["fwd d72 full B4 H16 S4096 fp16"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dtype", "fp8"), "got 'fp8'; legal: bf16, fp16"),
        (("--deterministic",), "--backward"),
        (("--backward", "--deterministic", "attention_bwd_*_d128_*"), "no CONFIG"),
        (("--backward", "--host"), "--host"),
        (("--backward", "attention_fwd_*_d128_*"), "attention_bwd"),
        (("--backward", "--shape", "fwd d64*"), "bwd d64 full B32 H32 S512"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], said: str, run: Run, timed: Asked) -> None:
    refused = run("bench", *words)
    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.replace("│", " ").split())
    assert timed == []


def test_plot_draws_the_document(run: Run, timed: Asked, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run("bench", "--shape", "d72 full*", "--plot", "b.png").exit_code == 0
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_backends_are_listed_and_checked(run: Run, timed: Asked) -> None:
    refused = run("bench", "--backend", "fast")
    assert refused.exit_code == 2
    shown = " ".join(run("bench", "--help").stdout.replace("│", " ").split())
    for name in PEERS:
        assert name in refused.stderr
        assert name in shown
    run("bench", "--shape", "d72 full*")
    assert set(timed[0]["backends"]) >= {"cudnn", "flash", "efficient"}
    assert "flex" not in timed[0]["backends"], "it compiles for each shape: only when named"
