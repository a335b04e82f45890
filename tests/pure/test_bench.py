"""Timing without a GPU: the ceiling, the document, names of shapes, and the table of a document."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

import pytest
import torch

from flashgen import bench, bench_document, bench_timing
from flashgen.bench import Row
from flashgen.bench_document import document
from flashgen.bench_grid import BACKWARD_GRID, GRID, Shape
from flashgen.bench_timing import matrix_product_tflops

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x@y)  Tue\nGCC version: 12.2\n"
)


def row(shape: str, implementation: str, tflops: float, over_cudnn: float | None, bar: float | None = 1.1) -> Row:
    return Row(shape, implementation, 1.0, 0.1, tflops, over_cudnn, bar, 0.0)


ROWS = [
    row("fwd d128 full B4 H16 S4096", "flashgen", 720, 1.2),
    row("fwd d128 full B4 H16 S4096", "cudnn", 600, 1.0),
    row("fwd d72 full B4 H16 S4096", "flashgen", 400, 1.0),
    row("fwd d72 full B4 H16 S4096", "cudnn", 400, 1.0),
]


def test_every_shape_of_the_grid_but_two_head_dims_has_a_bar() -> None:
    assert (len(GRID), len({shape.name for shape in GRID})) == (53, 53)
    without = [shape.name for shape in (*GRID, *BACKWARD_GRID) if shape.bar is None]
    assert without == ["fwd d192x128 full B4 H16 S4096", "fwd d192x128 causal B4 H16 S4096"]


def test_names_tell_shapes() -> None:
    own = Shape("causal", 192, 1, 32, 8, 2048, 32768, None, 128, "fp16")
    for shape in (*GRID, *BACKWARD_GRID, own):
        assert Shape.from_name(shape.name).name == shape.name
    assert Shape.from_name(own.name) == own
    with pytest.raises(ValueError, match="expected a shape such as"):
        Shape.from_name("bwd d64")
    assert Shape.from_name("bwd d64 full B32 H32 S512").direction == "bwd"


def test_the_ceiling_is_the_median_of_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    randn, asked = torch.randn, []

    def times(runs: dict[str, bench.Run], repetitions: int) -> dict[str, list[float]]:
        assert next(iter(runs.values()))().shape == (64, 64)
        asked.append(repetitions)
        return {name: [0.5, 9.0, 0.25] for name in runs}

    monkeypatch.setattr(bench_timing, "need_gpu", lambda: None)
    monkeypatch.setattr(bench_timing, "PRODUCT_SIZE", 64)
    monkeypatch.setattr(torch, "randn", lambda *size, device, dtype: randn(*size, dtype=dtype))
    monkeypatch.setattr(bench_timing, "time_runs", times)
    assert matrix_product_tflops(3) == pytest.approx(2 * 64**3 / 0.5e-3 / 1e12)
    assert asked == [3]


def test_the_document_says_what_it_ran_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(VERSION)
    monkeypatch.setattr(bench_document, "DRIVER_FILE", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91902)
    monkeypatch.setattr(bench_document, "nvrtc_version", lambda: "13.0.88")
    made = document(ROWS, 775.0, 20)
    assert made == json.loads(json.dumps(made))
    assert date.fromisoformat(made.pop("date"))
    assert made.pop("rows")[1]["implementation"] == "cudnn"
    assert made == {
        "gpu": "NVIDIA H200", "driver": "580.95.05", "torch": torch.__version__, "cudnn": "9.19.2", "nvrtc": "13.0.88",
        "matrix_product_tflops": 775.0, "repetitions": 20,
    }  # fmt: skip


def test_a_machine_that_hides_its_driver_tells_the_cuda_version(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def version(self) -> tuple[int, int]:
            return 13, 0

    monkeypatch.setattr(bench_document, "DRIVER_FILE", Path("/no/such/file"))
    monkeypatch.setattr(bench_document, "driver", Driver)
    assert bench_document._driver_version() == "takes CUDA 13.0"


def markdown(path: Path) -> list[str]:
    command = [sys.executable, str(ROOT / "benchmarks/table.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("bare", [False, True])
def test_the_markdown_table_ends_with_the_ceiling(bare: bool, tmp_path: Path) -> None:
    rows = [vars(each) for each in ROWS]
    whole = {"gpu": "NVIDIA H200", "matrix_product_tflops": 775.2, "rows": rows}
    (tmp_path / "b.json").write_text(json.dumps(rows if bare else whole))
    lines = markdown(tmp_path / "b.json")
    assert lines[2].startswith("| fwd d72 full B4 H16 S4096 | 400 | 400 | 1.000 | 1.100 | 0.909 |"), "short ones first"
    held = "1 of 2 rows at or above the bar; geometric mean 0.996 of it."
    ceiling = "NVIDIA H200: a matrix product of 8192 x 8192 bf16 runs at 775 TFLOP/s."
    assert lines[-1] == (held if bare else ceiling)
    assert held in lines


def test_rows_without_a_bar_or_cudnn_count_in_no_mean(tmp_path: Path) -> None:
    barless, alone = "fwd d192x128 full B4 H16 S4096", "fwd d192x128 causal B4 H16 S4096"
    more = [
        row(barless, "flashgen", 700, 1.5, None), row(barless, "cudnn", 500, 1.0, None),
        row(alone, "flashgen", 650, None, None), row(alone, "efficient", 300, None, None),
    ]  # fmt: skip
    (tmp_path / "b.json").write_text(json.dumps({"rows": [asdict(each) for each in [*ROWS, *more]]}))
    lines = markdown(tmp_path / "b.json")
    assert lines[4:6] == [f"| {barless} | 700 | 500 | 1.500 |  |  |", f"| {alone} | 650 |  |  |  |  |"]
    assert lines[-1] == "1 of 2 rows at or above the bar; geometric mean 0.996 of it.", "as without them"
    (tmp_path / "b.json").write_text(json.dumps({"rows": [asdict(each) for each in more]}))
    assert markdown(tmp_path / "b.json")[-1].startswith(f"| {alone} |"), "nothing to say of bars"


def test_the_table_of_a_backward_has_its_memory_and_what_deterministic_costs(tmp_path: Path) -> None:
    long, short = "bwd d64 full B2 H32 S8192", "bwd d64 causal B32 H32 S512"
    mine = {"direction": "bwd", "borrowed_bytes": 132 << 20}
    rows = [
        replace(row(long, "flashgen", 560, 1.25, 1.232), **mine),
        replace(row(long, "flashgen deterministic", 504, 1.125, 1.232), deterministic_cost=0.111, **mine),
        replace(row(long, "cudnn", 448, 1.0, 1.232), direction="bwd", borrowed_bytes=1 << 20),
        replace(row(short, "flashgen", 200, 1.2, 1.278), **mine),
        replace(row(short, "flash", 150, None, 1.278), direction="bwd", borrowed_bytes=0),
    ]
    (tmp_path / "b.json").write_text(json.dumps({"rows": [asdict(each) for each in [*ROWS, *rows]]}))
    lines = markdown(tmp_path / "b.json")
    assert lines[2].startswith("| fwd d72 full"), "a table each, forward first"
    assert lines[lines.index("", 5) + 1 :] == [
        "| shape | flashgen | cuDNN | ratio | bar | ratio / bar | deterministic, ratio | its cost | MiB borrowed | "
        "by cuDNN |",
        "|---" * 10 + "|",
        f"| {short} | 200 |  | 1.200 | 1.278 | 0.939 |  |  | 132 |  |",
        f"| {long} | 560 | 448 | 1.250 | 1.232 | 1.015 | 1.125 | 11 % | 132 | 1 |",
        "",
        "1 of 2 rows at or above the bar; geometric mean 0.976 of it.",
    ]


def test_the_table_of_an_old_document_is_still_made() -> None:
    path = ROOT / "benchmarks/h200_forward.json"
    mine = {row["shape"] for row in json.loads(path.read_text())["rows"] if row["implementation"] == "flashgen"}
    lines = markdown(path)
    assert {line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| fwd")} == mine
    assert lines[0] == "| shape | flashgen | cuDNN | ratio | bar | ratio / bar |"
