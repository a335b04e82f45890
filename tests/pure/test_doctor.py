"""The doctor names what is missing, what it costs, and the command that fixes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashgen import doctor, toolchain
from flashgen.doctor import diagnose
from flashgen.errors import ToolchainError
from flashgen.findings import Finding, Status


def finding(name: str) -> Finding:
    (found,) = [each for each in diagnose().findings if each.name == name]
    return found


def test_an_nvrtc_that_serialises_products_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "nvrtc_version", lambda: "12.8.93")
    found = finding("NVRTC")
    assert found.status is Status.warning
    assert "C7515" in found.value
    assert found.fix == "pip install 'nvidia-cuda-nvrtc-cu12>=12.9,<13'"


def test_a_slower_nvrtc_is_told_and_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "nvrtc_version", lambda: "13.2.51")
    found = finding("NVRTC")
    assert found.status is Status.warning
    assert "2 to 6 % slower" in found.value
    assert "<13.1" in found.fix
    for version in ("12.9.86", "13.0.88"):
        monkeypatch.setattr(toolchain, "nvrtc_version", lambda version=version: version)
        assert finding("NVRTC") == Finding("NVRTC", Status.ok, version)


def test_what_is_in_the_way_of_compiling_is_an_error_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ToolchainError("NVRTC not found. Install with: pip install 'flashgen[cu13]'")

    monkeypatch.setattr(toolchain, "nvrtc_version", missing)
    report = diagnose()
    assert not report.can_compile
    assert Finding("NVRTC", Status.error, "NVRTC not found.", "pip install 'flashgen[cu13]'") in report.findings

    monkeypatch.undo()
    monkeypatch.setattr(toolchain, "find_toolchain", missing)
    assert not diagnose().can_compile


def test_a_missing_package_is_an_error_and_missing_torch_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    assert finding("cuda-core") == Finding("cuda-core", Status.error, "not installed", "pip install cuda-core")
    assert finding("torch").status is Status.warning


def test_a_cache_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    found = finding("cache")
    assert found.status is Status.warning
    assert found.fix.startswith("export FLASHGEN_CACHE_DIR=")
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "not" / "yet"))
    assert finding("cache").status is Status.ok


def test_a_compiler_newer_than_the_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def version(self) -> tuple[int, int]:
            return 12, 8

    monkeypatch.setattr("flashgen.driver.driver", Old)
    monkeypatch.setattr(toolchain, "nvrtc_version", lambda: "13.0.88")
    found = finding("driver")
    assert found.status is Status.warning
    assert "12.8" in found.value
    assert "flashgen[cu12]" in found.fix
