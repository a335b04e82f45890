"""Each missing piece of the toolchain gives its own clear message, with the command that brings it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda import pathfinder

from flashgen import toolchain
from flashgen.errors import ToolchainError
from flashgen.generator.paths import INCLUDE
from flashgen.toolchain import Toolchain, find_toolchain


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing found before, nor by these tests, is remembered."""
    toolchain._find.cache_clear()
    toolchain.nvrtc_version.cache_clear()
    yield
    toolchain._find.cache_clear()
    toolchain.nvrtc_version.cache_clear()


def headers(folder: Path | None, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Let pathfinder find the headers of one library in ``folder``, or not at all."""
    real = pathfinder.find_nvidia_header_directory
    found = None if folder is None else str(folder)
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda n: found if n == library else real(n))


def version_header(folder: Path, text: str, name: str = "cuda/std/__cccl/version.h") -> Path:
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(text)
    return folder


def test_found(toolchain: Toolchain) -> None:
    found = find_toolchain()
    assert found == toolchain
    assert all(version.replace(".", "").isdigit() for name, version in found.facts().items() if "version" in name)
    for header in (
        "flashgen/attention/params.h",
        "cute/tensor.hpp",
        "cuda.h",
        "crt/host_defines.h",
        "cuda/std/cstdint",
    ):
        assert any((folder / header).is_file() for folder in found.include_dirs), header
    assert not any("/" in fact for fact in found.facts().values())


def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(f"no lib{name}.so anywhere")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", fail)
    with pytest.raises(
        ToolchainError, match=r"NVRTC not found .*pip install 'flashgen\[cu13\]'.*nvidia-cuda-nvrtc>=13.0"
    ):
        find_toolchain()


@pytest.mark.parametrize(
    ("library", "package"), [("cudart", "nvidia-cuda-runtime>=13.0"), ("cccl", "nvidia-cuda-cccl>=13.0,<13.2")]
)
def test_no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, package: str) -> None:
    headers(tmp_path, monkeypatch, library)
    with pytest.raises(ToolchainError, match=rf"not found .*pip install '{package}") as error:
        find_toolchain()
    assert str(tmp_path) in str(error.value)


def test_no_crt_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version_header(tmp_path, "#define CUDA_VERSION 13000\n", "include/cuda.h")
    headers(tmp_path / "include", monkeypatch, "cudart")
    headers(None, monkeypatch, "nvcc")
    with pytest.raises(ToolchainError, match=r"crt headers .*pip install 'nvidia-cuda-crt"):
        find_toolchain()


def test_no_cutlass(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cutlass_library" else real(name))
    with pytest.raises(ToolchainError, match=r"CUTLASS headers .*pip install 'nvidia-cutlass"):
        find_toolchain()


def test_own_cutlass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = find_toolchain()
    monkeypatch.setenv("FLASHGEN_CUTLASS_INCLUDE", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"holds no cute/tensor.hpp"):
        find_toolchain()
    version = "".join(f"#define CUTLASS_{part} {n}\n" for part, n in (("MAJOR", 4), ("MINOR", 2), ("PATCH", 1)))
    version_header(tmp_path, version, "cutlass/version.h")
    version_header(tmp_path, "// a fork's\n", "cute/tensor.hpp")
    found = find_toolchain()
    assert (found.cutlass_version, tmp_path in found.include_dirs) == ("4.2.1", True)
    toolchain._find.cache_clear()
    (tmp_path / "cute/tensor.hpp").write_text("// a fork's, changed\n")
    changed = find_toolchain()
    assert len({plain.header_digest, found.header_digest, changed.header_digest}) == 3


@pytest.mark.parametrize("number", [3_002_000, 3_003_001, 4_000_000])
def test_cccl_too_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    headers(version_header(tmp_path, f"#define CCCL_VERSION {number}\n"), monkeypatch, "cccl")
    with pytest.raises(
        ToolchainError, match=r"too new for CUTLASS 4\.2\.0 .*pip install 'nvidia-cuda-cccl>=13.0,<13.2'"
    ):
        find_toolchain()


def test_older_cccl_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers(version_header(tmp_path, "#define CCCL_VERSION 3001999\n"), monkeypatch, "cccl")
    assert find_toolchain().cccl_version == "3.1.999"


def test_header_without_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers(version_header(tmp_path, "// nothing\n"), monkeypatch, "cccl")
    with pytest.raises(ToolchainError, match="does not define CCCL_VERSION"):
        find_toolchain()


def test_digest_is_of_content_and_names_alone(tmp_path: Path) -> None:
    trees = [shutil.copytree(INCLUDE, tmp_path / name) for name in ("here", "there")]
    first, second = (toolchain._digest("versions", [tree]) for tree in trees)
    assert first == second
    next(trees[0].rglob("*.h")).open("a").write(" ")
    changed = toolchain._digest("versions", [trees[0]])
    next(trees[1].rglob("*.h")).rename(trees[1] / "renamed.h")
    assert len({first, changed, toolchain._digest("versions", [trees[1]]), toolchain._digest("others", [INCLUDE])}) == 4
