"""Parsed headers kept between the compilations of one process: the same machine code, and never a reason to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flashgen.compiler import compile_source, reuse_headers
from flashgen.errors import CompileError
from flashgen.toolchain import Toolchain

SOURCE = """#include <cuda/std/type_traits>
extern "C" __global__ void small(int* out) {{ out[threadIdx.x] = cuda::std::is_same_v<int, int> ? {value} : 0; }}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    reuse_headers(tmp_path)
    yield tmp_path
    reuse_headers(None)


def compiled(value: int, toolchain: Toolchain) -> bytes:
    return compile_source(SOURCE.format(value=value), "small", "sm90a", toolchain).cubin


def test_same_machine_code(folder: Path, toolchain: Toolchain) -> None:
    reused = [compiled(value, toolchain) for value in (1, 2)]
    assert list(folder.glob("*.pch")), "nothing was kept: this NVRTC or cuda.core takes no -pch"
    assert "using precompiled header" in compile_source(SOURCE.format(value=3), "small", "sm90a", toolchain).log
    reuse_headers(None)
    assert reused == [compiled(value, toolchain) for value in (1, 2)]


def test_folder_that_is_gone(folder: Path, cache_dir: Path, toolchain: Toolchain) -> None:
    reuse_headers(folder / "gone")
    assert compiled(1, toolchain)
    with pytest.raises(CompileError, match="undeclared"):
        compile_source('extern "C" __global__ void bad() { undeclared = 1; }\n', "bad", "sm90a", toolchain)
