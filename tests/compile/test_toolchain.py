"""Each missing piece of the toolchain gives its own clear message, with the command that brings it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda import pathfinder

from flashgen import toolchain
from flashgen.cache import CubinCache
from flashgen.errors import CompileError, ToolchainError
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


def test_digest_is_of_content_and_names_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(tree: Path, *versions: str) -> str:
        monkeypatch.setattr(toolchain, "INCLUDE", tree)
        return toolchain._header_digest(versions or ("4.2.0", "3.0.1", "13.0"), None)

    here, there = (shutil.copytree(INCLUDE, tmp_path / name) for name in ("here", "there"))
    first = digest(here)
    assert first == digest(there)
    header = next(here.rglob("*.h"))
    header.write_text(header.read_text() + " ")
    next(there.rglob("*.h")).rename(there / "renamed.h")
    assert len({first, digest(here), digest(there), digest(INCLUDE, "4.2.1", "3.0.1", "13.0")}) == 4


def test_headers_edited_under_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: str) -> None:
    """What was compiled from headers that changed meanwhile is not kept under the old headers' key."""
    own = shutil.copytree(INCLUDE, tmp_path / "include")
    monkeypatch.setattr(toolchain, "INCLUDE", own)
    before = find_toolchain()
    cache = CubinCache(tmp_path / "cache")
    assert not cache.get_or_compile(small, "small", "sm90a", before).cached
    assert cache.get_or_compile(small, "small", "sm90a", before).cached
    (own / "new.h").write_text("#pragma once\n")
    cache.get_or_compile(small + "// more\n", "small", "sm90a", before)
    assert len(cache.entries()) == 1
    (own / "new.h").write_text("#error\n")
    with pytest.raises(CompileError):
        cache.get_or_compile("#error\n", "small", "sm90a", before)
    assert not cache._failures, "the headers may be at fault, which are others by now"
    after = find_toolchain()
    assert after.header_digest != before.header_digest
    cache.get_or_compile(small, "small", "sm90a", after)
    assert len(cache.entries()) == 2
