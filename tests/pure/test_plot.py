"""What the picture of a bench document shows: which rows are lines, which are bars, and that it can be drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from flashgen.bench_grid import BACKWARD_GRID, GRID, Shape
from flashgen.errors import NotAvailableError
from flashgen.panels import arrange, bar_labels
from flashgen.plot import save_plot

ROOT = Path(__file__).resolve().parent.parent.parent


def rows(shapes: Iterable[Shape], *names: str) -> list[dict[str, Any]]:
    return [
        {"shape": shape.name, "implementation": name, "tflops": 100.0 + shape.head_dim}
        for shape in shapes
        for name in names or ("flashgen", "cudnn")
    ]


def test_the_grid_makes_six_panels_and_bars_of_the_rest() -> None:
    panels, bars = arrange(rows(GRID))
    assert [panel.title for panel in panels] == [
        "d64 full, 32 heads", "d64 causal, 32 heads", "d128 full, 16 heads", "d128 causal, 16 heads",
        "d256 full, 8 heads", "d256 causal, 8 heads",
    ]  # fmt: skip
    assert panels[0].lengths == [512, 1024, 2048, 4096, 8192, 16384]
    assert panels[3].lengths[-2:] == [16384, 65536]
    assert panels[0].series["cudnn"][512] == 164
    assert len(bars) == 16
    assert bars[0].values == {"flashgen": 172, "cudnn": 172}
    common, labels = bar_labels(bars)
    assert common == "One length: S4096, 16 heads unless said otherwise"
    assert labels[:2] == ["d72 full", "d72 causal"]
    assert labels[-5:-2] == ["d192 causal", "d192x128\nfull", "d192x128\ncausal"]
    assert labels[-2:] == ["d128 causal\n32/8 heads\nS8192", "d128 full\n32/8 heads\nS2048x32768"]


def test_three_lengths_make_a_panel_of_one_head_count_and_dtype() -> None:
    two = [Shape("full", 64, 1, 8, 8, n, n) for n in (512, 1024)]
    uneven = Shape("full", 64, 1, 8, 8, 2048, 4096)
    grouped = Shape("full", 64, 1, 8, 2, 2048, 2048)
    half = Shape("full", 64, 1, 8, 8, 2048, 2048, dtype="fp16")
    panels, bars = arrange(rows([*two, uneven, grouped, half]))
    assert panels == []
    assert [each.shape.name for each in bars] == [shape.name for shape in (*two, uneven, grouped, half)]
    assert bar_labels(bars)[1][-1].splitlines()[0] == "fp16 d64 full"
    panels, bars = arrange(rows([*two, Shape("full", 64, 9, 8, 8, 2048, 2048), uneven]))
    assert [panel.lengths for panel in panels] == [[512, 1024, 2048]]
    assert [each.shape for each in bars] == [uneven]


def test_a_line_holds_only_the_lengths_that_were_timed() -> None:
    shapes = [Shape("causal", 64, 1, 8, 8, n, n) for n in (512, 1024, 2048)]
    panels, bars = arrange(rows(shapes) + rows(shapes[:1], "fa3"))
    assert {name: sorted(points) for name, points in panels[0].series.items()} == {
        "flashgen": [512, 1024, 2048], "cudnn": [512, 1024, 2048], "fa3": [512]
    }  # fmt: skip
    assert bars == []


def test_a_backward_has_panels_of_its_own() -> None:
    panels, bars = arrange(rows(BACKWARD_GRID, "flashgen", "flashgen deterministic", "cudnn"))
    assert [panel.title for panel in panels] == [panel.title for panel in arrange(rows(GRID))[0]]
    assert {panel.direction for panel in panels} == {"bwd"}
    assert len(bars) == 12
    assert bar_labels(bars)[1][0] == "d72 full"
    panels, bars = arrange(rows([*GRID, *BACKWARD_GRID]))
    assert [panel.direction for panel in panels] == ["fwd"] * 6 + ["bwd"] * 6
    assert bar_labels(bars)[1][-1] == "bwd d192 causal"


@pytest.mark.parametrize(
    ("shapes", "title"),
    [
        (GRID, "Attention forward"),
        (BACKWARD_GRID, "Attention backward"),
        (BACKWARD_GRID + GRID, "Attention forward and"),
    ],
)
def test_the_title_says_what_was_timed(shapes: tuple[Shape, ...], title: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_plot({"gpu": "X", "rows": rows(shapes, "flashgen", "flashgen deterministic")}, tmp_path / "b.svg")
    text = (tmp_path / "b.svg").read_text()
    assert f"<!-- {title}" in text
    assert "<!-- flashgen deterministic -->" in text
    assert ("<!-- bwd d64 full, 32 heads -->" in text) == (len(shapes) > len(GRID))


def test_an_old_document_is_still_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_plot(json.loads((ROOT / "benchmarks/h200_forward.json").read_text()), tmp_path / "b.svg")
    assert "<!-- Attention forward on NVIDIA H200 -->" in (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize("shapes", [GRID, GRID[:6], GRID[-3:], GRID[:1]], ids=["grid", "lines", "bars", "one"])
@pytest.mark.parametrize("names", [("flashgen", "cudnn"), ("flashgen", "fa3", "fa4", "flashinfer", "flash", "128x96")])
def test_pictures_are_drawn(shapes: tuple[Shape, ...], names: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_plot({"gpu": "NVIDIA H200", "matrix_product_tflops": 775.0, "rows": rows(shapes, *names)}, tmp_path / "b.png")
    picture = (tmp_path / "b.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20]) == 1404


def test_a_document_is_drawn_again_by_the_script(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "b.json").write_text(json.dumps({"rows": rows(GRID[:7])}))
    command = [sys.executable, str(ROOT / "benchmarks/plot.py"), str(tmp_path / "b.json"), str(tmp_path / "b.svg")]
    subprocess.run(command, check=True, cwd=tmp_path)
    text = (tmp_path / "b.svg").read_text()
    assert "<svg" in text
    assert subprocess.run(command[:2], cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NotAvailableError, match="pip install"):
        save_plot({"rows": rows(GRID[:1])}, tmp_path / "b.png")
