"""The headers compile unrendered, through the index that includes them all."""

from __future__ import annotations

import pytest

from flashgen.compiler import compile_source
from flashgen.generator.paths import TEMPLATES
from flashgen.toolchain import Toolchain


@pytest.mark.parametrize("index", ["index", "index_bwd"])
def test_an_index_compiles(index: str, toolchain: Toolchain) -> None:
    compiled = compile_source((TEMPLATES / f"{index}.cu").read_text(), index, "sm90a", toolchain)
    assert compiled.resources.complaints == ()
    assert "warning" not in compiled.log


def test_each_header_compiles_alone(toolchain: Toolchain) -> None:
    """No header leans on what another happens to have included before it."""
    headers = sorted((TEMPLATES / "include").rglob("*.cuh")) + sorted((TEMPLATES / "include").rglob("*.h"))
    assert headers
    for header in headers:
        name = header.relative_to(TEMPLATES / "include").as_posix()
        source = f'#include <{name}>\nextern "C" __global__ void alone() {{}}\n'
        assert "warning" not in compile_source(source, "alone", "sm90a", toolchain).log, name
