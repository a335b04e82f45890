"""docs/calling.md is true: its Python runs, in order, and its tables name what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import flashgen
from flashgen import errors

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "calling.md").read_text("utf-8")


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 7
    # Smaller lengths and the CPU: the page is about meaning, which has no size.
    text = "\n".join(blocks).replace("1024", "48").replace("1536", "80").replace('"cuda" if torch', '"cpu" if torch')
    exec(compile(text, "calling.md", "exec"), {})
    printed = capsys.readouterr().out
    comments = re.findall(r"print\(error\)  # (.*)", PAGE)
    assert len(comments) == 1
    assert comments[0] in printed
    assert "ok: max error" in printed


def test_the_host_times_are_those_of_the_benchmark() -> None:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "h200_host.json"
    measured = {row["implementation"]: row["microseconds"] for row in json.loads(path.read_text())}
    told = re.findall(r"^\| (.*) \| (\d+\.\d) \|$", PAGE, re.MULTILINE)
    assert len(told) >= 4
    for name, microseconds in told:
        assert measured[name.replace("`", "")] == pytest.approx(float(microseconds), abs=0.05), name


def test_every_error_is_what_the_table_says() -> None:
    rows = re.findall(r"^\| `(\w+Error)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert len(rows) == 8
    for name, base in rows:
        kind = getattr(flashgen, name)
        assert issubclass(kind, errors.FlashgenError)
        assert base in {parent.__name__ for parent in kind.__mro__}


def test_every_argument_without_a_kernel_is_named() -> None:
    import inspect

    arguments = inspect.signature(flashgen.attention).parameters
    unbuilt = [name for name, parameter in arguments.items() if parameter.default is None and name != "softmax_scale"]
    assert unbuilt
    assert all(f"`{name}`" in PAGE for name in unbuilt)
