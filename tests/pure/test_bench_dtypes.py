"""``flashgen bench`` in fp16 and bf16: which shapes it times, and what its table says of both."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import typer

from flashgen.bench import Row
from flashgen.bench_grid import GRID, Shape
from flashgen.cli import bench_table, shared
from flashgen.cli.bench_shapes import dtypes_of, needed_entries, own_shapes, shapes_of

BF16, FP16 = "fwd d72 full B4 H16 S4096", "fwd d72 full B4 H16 S4096 fp16"


def timed(
    dtype: str | None, pattern: str | None = None, config: str | None = None, direction: str = "fwd"
) -> list[str]:
    entries = shared.entries_of([config]) if config else []
    return [shape.name for shape in shapes_of(pattern, direction, entries, dtypes_of(dtype, pattern, entries))]


def test_the_grid_is_timed_in_the_dtypes_asked_for() -> None:
    assert timed("bf16,fp16", "d72 full*") == [BF16, FP16], "each pair together: as warm as each other"
    assert timed("fp16, bf16", "d72 full*") == [FP16, BF16]
    assert timed("fp16", "d72 full*S4096") == [FP16]
    assert timed("fp16") == [f"{shape.name} fp16" for shape in GRID]
    assert timed(None, "d72 full") == [BF16]
    assert timed(None, FP16) == [FP16], "a name of it is enough"
    assert timed("fp16", "d72 full", direction="bwd") == ["bwd d72 full B4 H16 S4096 fp16"]


def test_kernels_given_have_a_dtype_of_their_own() -> None:
    assert timed(None, config="attention_fwd_*_fp16_d72_full") == [FP16]
    assert timed(None, config="attention_fwd_*_d72_full") == [BF16, FP16]
    assert timed("fp16", config="attention_fwd_*_d72_full") == [FP16]
    assert timed("fp16", config="attention_fwd_*_d40_full") == ["fwd d40 full B4 H16 S4096 fp16"], "not in the grid"
    with pytest.raises(typer.BadParameter, match="the kernels given are attention_fwd_fa3_sm90a_bf16_d72_full"):
        timed("fp16", config="attention_fwd_*_bf16_d72_full")


def test_a_shape_of_ones_own_is_timed_in_each_dtype() -> None:
    shapes = own_shapes({"head_dim": 72, "seqlen": 64, "batch": None}, "fwd", ["fp16", "bf16"])
    assert [shape.name for shape in shapes] == ["fwd d72 full B4 H16 S64 fp16", "fwd d72 full B4 H16 S64"]
    assert own_shapes({"head_dim": None}, "fwd", ["bf16"]) == []


def test_fp16_has_kernels_of_its_own_and_no_bar() -> None:
    assert all(shape.in_dtype("bf16") is shape for shape in GRID)
    half = Shape.from_name(BF16).in_dtype("fp16")
    assert next(shape for shape in GRID if shape.name == BF16).in_dtype("fp16") == half
    assert half.bar is None
    (entry,) = needed_entries([half], [], False)
    assert entry.spec.dtype == "fp16"


@pytest.mark.parametrize("wrong", ["fp8", "bf16,", "", "bf16 fp16"])
def test_other_dtypes_are_refused(wrong: str) -> None:
    with pytest.raises(typer.BadParameter, match="legal: bf16, fp16"):
        dtypes_of(wrong, None, [])


def test_the_table_says_how_fp16_does_beside_bf16(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row(BF16, "flashgen", 1.25, 0.01, 512.0, 1.1, 1.2, 0.0)
    half = replace(row, shape=FP16, milliseconds=1.0, bar=None)
    rows = [row, half, replace(half, implementation="cudnn", over_cudnn=1.0)]
    about = {"gpu": "NVIDIA H200", "matrix_product_tflops": 775.4}
    bench_table.show(about | {"rows": [asdict(each) for each in rows]}, [])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][-2:] == ["x", "bf16"]
    assert [line[-1] for line in lines[1:4]] == ["1.20", "1.25", "-"], "1.25 ms over 1 ms; cuDNN ran one only"
